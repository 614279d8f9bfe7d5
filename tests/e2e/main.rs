//! The built program, driven from outside as its users do.

mod config;
mod crash;
mod stdio;
mod support;
