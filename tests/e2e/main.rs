//! The built program, driven from outside as its users do.

mod attributes;
mod config;
mod crash;
mod edge;
mod faults;
mod files;
mod http;
mod large;
mod limits;
mod many;
mod metrics;
mod network;
mod owners;
mod processes;
mod rmcp_client;
mod routing;
mod sessions;
mod stdio;
mod support;
mod terminal;
