//! The proxy in front of real servers, with real clients: curl, git, pip, cargo and npm.
//!
//! The servers are on the loopback, which is private, so the policies allow them by
//! `allow_private`, and the names come from a resolver of the test.

#![allow(clippy::unwrap_used)] // helpers of tests fail as tests do

mod curl;
mod limits;
mod refusals;
mod support;
mod tools;
mod wire;
