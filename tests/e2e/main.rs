//! The built program, driven from outside as its users do.

mod config;
mod crash;
mod http;
mod stdio;
mod support;
mod terminal;
mod worker;
