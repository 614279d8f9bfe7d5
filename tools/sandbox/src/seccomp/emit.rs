//! From "what to do with each system call number" to a BPF program shaped as a balanced
//! tree over ranges of numbers: about eight comparisons for any call, where a list costs
//! up to one per entry and is loaded at every launch.

use super::policy::{Rule, Word};

// linux/bpf_common.h, linux/seccomp.h.
const LOAD_WORD: u16 = 0x20;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER_EQUAL: u16 = 0x35;
const JUMP_SET: u16 = 0x45;
const RETURN: u16 = 0x06;
const KILL_PROCESS: u32 = 0x8000_0000;
const ALLOW: u32 = 0x7FFF_0000;
const ERRNO: u32 = 0x0005_0000;
// Offsets in struct seccomp_data: the low halves of the arguments on little endian.
const AT_NUMBER: u32 = 0;
const AT_ARCHITECTURE: u32 = 4;
const AT_ARGUMENTS: u32 = 16;

/// One instruction, as struct sock_filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Instruction {
    pub(crate) code: u16,
    pub(crate) jt: u8,
    pub(crate) jf: u8,
    pub(crate) k: u32,
}

const fn op(code: u16, k: u32) -> Instruction {
    Instruction {
        code,
        jt: 0,
        jf: 0,
        k,
    }
}

const fn jump(code: u16, k: u32, jt: u8, jf: u8) -> Instruction {
    Instruction { code, jt, jf, k }
}

/// The program for one architecture; any other one kills the process.
pub(super) fn program(
    architecture: u32,
    newest: u32,
    rule: impl Fn(u32) -> Rule,
) -> Vec<Instruction> {
    // The last range has no end: numbers nobody knows yet, and the x32 ones.
    let mut ranges: Vec<(u32, Rule)> = vec![(0, rule(0))];
    for number in 1..=newest + 1 {
        let next = rule(number);
        if ranges.last().is_none_or(|(_, last)| *last != next) {
            ranges.push((number, next));
        }
    }
    let mut program = vec![
        op(LOAD_WORD, AT_ARCHITECTURE),
        jump(JUMP_EQUAL, architecture, 1, 0),
        op(RETURN, KILL_PROCESS),
        op(LOAD_WORD, AT_NUMBER),
    ];
    program.extend(tree(&ranges));
    program
}

fn tree(ranges: &[(u32, Rule)]) -> Vec<Instruction> {
    if let [(_, rule)] = ranges {
        return leaf(rule);
    }
    let (low, high) = ranges.split_at(ranges.len() / 2);
    let (below, above) = (tree(low), tree(high));
    let pivot = high[0].0;
    let mut code = match u8::try_from(below.len()) {
        Ok(distance) => vec![jump(JUMP_GREATER_EQUAL, pivot, distance, 0)],
        // Conditional jumps reach 255 instructions, plain ones everything.
        Err(_) => vec![
            jump(JUMP_GREATER_EQUAL, pivot, 0, 1),
            op(JUMP, below.len() as u32),
        ],
    };
    code.extend(below);
    code.extend(above);
    code
}

fn leaf(rule: &Rule) -> Vec<Instruction> {
    match rule {
        Rule::Allow => vec![op(RETURN, ALLOW)],
        Rule::Refuse(errno) => vec![refuse(*errno)],
        Rule::RefuseBits {
            argument,
            bits,
            errno,
        } => vec![
            load(*argument),
            jump(JUMP_SET, *bits, 1, 0),
            op(RETURN, ALLOW),
            refuse(*errno),
        ],
        Rule::RefuseWords(word) => one_of(word, refuse(word.errno), op(RETURN, ALLOW)),
        Rule::AllowWords(word) => one_of(word, op(RETURN, ALLOW), refuse(word.errno)),
    }
}

fn one_of(word: &Word, listed: Instruction, other: Instruction) -> Vec<Instruction> {
    let mut code = vec![load(word.argument)];
    for (index, value) in word.values.iter().enumerate() {
        // Over the remaining comparisons and the answer for others.
        code.push(jump(
            JUMP_EQUAL,
            *value,
            (word.values.len() - index) as u8,
            0,
        ));
    }
    code.extend([other, listed]);
    code
}

fn load(argument: u32) -> Instruction {
    op(LOAD_WORD, AT_ARGUMENTS + 8 * argument)
}

fn refuse(errno: i32) -> Instruction {
    op(RETURN, ERRNO | (errno as u32 & 0xFFFF))
}
