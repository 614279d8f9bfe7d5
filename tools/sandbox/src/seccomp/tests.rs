//! The program is run, instruction by instruction, for every number and compared with the
//! policy.

use super::{
    Filter, Mode,
    emit::Instruction,
    policy::{self, NEWEST, Rule, rule},
};

const MODES: [Mode; 4] = [
    Mode {
        debug: false,
        no_namespaces: false,
    },
    Mode {
        debug: true,
        no_namespaces: false,
    },
    Mode {
        debug: false,
        no_namespaces: true,
    },
    Mode {
        debug: true,
        no_namespaces: true,
    },
];

fn run(program: &[Instruction], architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
    let mut data = Vec::new();
    data.extend(number.to_le_bytes());
    data.extend(architecture.to_le_bytes());
    data.extend(0u64.to_le_bytes());
    for argument in arguments {
        data.extend(argument.to_le_bytes());
    }
    let (mut at, mut word, mut steps) = (0usize, 0u32, 0);
    loop {
        let now = program[at];
        at += 1;
        steps += 1;
        assert!(steps < 40, "the tree is shallow");
        let branch = |taken: bool| usize::from(if taken { now.jt } else { now.jf });
        match now.code {
            0x20 => {
                let from = now.k as usize;
                word = u32::from_le_bytes(data[from..from + 4].try_into().unwrap());
            }
            0x05 => at += now.k as usize,
            0x15 => at += branch(word == now.k),
            0x35 => at += branch(word >= now.k),
            0x45 => at += branch(word & now.k != 0),
            0x06 => return now.k,
            code => panic!("no instruction of ours: {code:#x}"),
        }
    }
}

fn wanted(rule: Rule, arguments: [u64; 6]) -> u32 {
    let low = |argument: u32| arguments[argument as usize] as u32;
    let refused = match rule {
        Rule::Allow => None,
        Rule::Refuse(errno) => Some(errno),
        Rule::RefuseBits {
            argument,
            bits,
            errno,
        } => (low(argument) & bits != 0).then_some(errno),
        Rule::RefuseWords(word) => word
            .values
            .contains(&low(word.argument))
            .then_some(word.errno),
        Rule::AllowWords(word) => {
            (!word.values.contains(&low(word.argument))).then_some(word.errno)
        }
    };
    refused.map_or(0x7FFF_0000, |errno| 0x0005_0000 | errno as u32)
}

#[test]
fn every_number_gets_its_rule() {
    let samples: Vec<[u64; 6]> = [
        0,
        1,
        2,
        10,
        16,
        17,
        38,
        40,
        0x5412,
        0x541C,
        0x1000_0000,
        0x0002_0011,
        u64::MAX,
    ]
    .into_iter()
    .map(|value| [value; 6])
    // What the high half holds does not matter to a 32-bit argument.
    .chain([[0xDEAD_0000_0000_5412; 6], [0xFFFF_FFFF_0000_0001; 6]])
    .collect();
    for mode in MODES {
        let program = Filter::new(mode).0;
        assert!(program.len() < 1000);
        // The x32 numbers begin at 0x4000_0000.
        let numbers = (0..=NEWEST + 200).chain([0x4000_0000, 0x4000_0001, u32::MAX]);
        for number in numbers {
            for arguments in &samples {
                let got = run(&program, policy::ARCHITECTURE, number, *arguments);
                assert_eq!(
                    got,
                    wanted(rule(mode, number), *arguments),
                    "number {number} {mode:?}"
                );
            }
        }
    }
}

#[test]
fn another_architecture_is_killed() {
    let program = Filter::new(Mode::default()).0;
    for architecture in [0x4000_0003, 0x4000_0028, 0] {
        assert_eq!(run(&program, architecture, 0, [0; 6]), 0x8000_0000);
    }
}

#[test]
fn unknown_numbers_do_not_exist() {
    for number in [NEWEST + 1, 1000, 0x4000_0000 + 59, u32::MAX] {
        assert_eq!(rule(Mode::default(), number), Rule::Refuse(libc::ENOSYS));
    }
}
