//! The built program, driven from outside as its users do.

mod config;
mod crash;
mod faults;
mod http;
mod large;
mod many;
mod network;
mod owners;
mod rmcp_client;
mod sessions;
mod stdio;
mod support;
mod terminal;
