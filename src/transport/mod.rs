//! How clients reach the stack: stdio, Streamable HTTP, and the operator's own listener.

pub mod admin;
pub mod ending;
pub mod envelope;
pub mod host;
pub mod http;
mod listener;
mod message;
pub mod meter;
pub mod stdio;
pub mod step;
