//! Path globs, matched one component at a time.
//!
//! `*` and `?` cannot match `/` when they never see one, and the walk knows after each
//! folder's name whether anything below it can still match. No crate does the second.

use std::iter::Peekable;

const MOST_ALTERNATIVES: usize = 256;
const MOST_COMPONENTS: usize = 63;

/// A glob, its braces written out.
#[derive(Debug)]
pub(super) struct Glob {
    alternatives: Vec<Alternative>,
}

#[derive(Debug)]
struct Alternative {
    components: Vec<Component>,
    names_git: bool,
}

#[derive(Debug, PartialEq)]
enum Component {
    /// `**`: any number of folders, or, at the end, any file below.
    Deep,
    Name(Vec<Token>),
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Char(char),
    One,
    Many,
    Class {
        not: bool,
        ranges: Vec<(char, char)>,
    },
}

/// How far each alternative has come on the way to a folder: a set of components.
#[derive(Clone, Debug)]
pub(super) struct State(Vec<u64>);

impl Glob {
    /// The glob that matches every file.
    pub(super) fn everything() -> Self {
        Self {
            alternatives: vec![Alternative {
                components: vec![Component::Deep],
                names_git: false,
            }],
        }
    }

    /// Reads a glob, or says what is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let mut alternatives = Vec::new();
        for plain in expand(text)? {
            alternatives.push(Alternative::parse(&plain)?);
        }
        Ok(Self { alternatives })
    }

    /// The state at the root.
    pub(super) fn start(&self) -> State {
        State(self.alternatives.iter().map(|one| one.close(1)).collect())
    }

    /// The state inside the folder `name`; `None` when nothing below can match.
    pub(super) fn enter(&self, state: &State, name: &str) -> Option<State> {
        let each = |(one, bits): (&Alternative, &u64)| one.enter(*bits, name);
        let inner: Vec<u64> = self.alternatives.iter().zip(&state.0).map(each).collect();
        inner.iter().any(|bits| *bits != 0).then_some(State(inner))
    }

    /// Whether a whole path matches.
    pub(super) fn matches_path(&self, path: &str) -> bool {
        let (folder, name) = super::path::split(path);
        let mut state = self.start();
        for part in folder.split('/').filter(|part| !part.is_empty()) {
            match self.enter(&state, part) {
                Some(inner) => state = inner,
                None => return false,
            }
        }
        self.matches(&state, name)
    }

    /// Whether the file `name` matches here.
    pub(super) fn matches(&self, state: &State, name: &str) -> bool {
        self.alternatives
            .iter()
            .zip(&state.0)
            .any(|(one, bits)| one.matches(*bits, name))
    }
}

impl Alternative {
    fn parse(text: &str) -> Result<Self, &'static str> {
        // `./` says where: at the root, as any other slash does.
        let here = text.strip_prefix("./");
        let text = here.unwrap_or(text);
        let mut components = Vec::new();
        if here.is_none() && !text.contains('/') {
            components.push(Component::Deep);
            components.push(Component::Name(tokens(text)?));
        } else {
            for part in text.trim_start_matches('/').split('/') {
                components.push(match part {
                    "**" => Component::Deep,
                    other => Component::Name(tokens(other)?),
                });
            }
        }
        components.dedup_by(|a, b| *a == Component::Deep && *b == Component::Deep);
        if components.len() > MOST_COMPONENTS {
            return Err("it has too many components");
        }
        Ok(Self {
            names_git: text.split('/').any(|part| part == ".git"),
            components,
        })
    }

    // `**` may stand for no folder at all.
    fn close(&self, mut bits: u64) -> u64 {
        for (at, component) in self.components.iter().enumerate() {
            if *component == Component::Deep
                && bits & (1 << at) != 0
                && at + 1 < self.components.len()
            {
                bits |= 1 << (at + 1);
            }
        }
        bits
    }

    fn enter(&self, bits: u64, name: &str) -> u64 {
        if bits == 0 || (name == ".git" && !self.names_git) {
            return 0;
        }
        let mut next = 0;
        for (at, component) in self
            .components
            .iter()
            .enumerate()
            .filter(|(at, _)| bits & (1 << at) != 0)
        {
            match component {
                Component::Deep => next |= 1 << at,
                Component::Name(tokens) if at + 1 < self.components.len() && fits(tokens, name) => {
                    next |= 1 << (at + 1);
                }
                Component::Name(_) => {}
            }
        }
        self.close(next)
    }

    fn matches(&self, bits: u64, name: &str) -> bool {
        let last = self.components.len() - 1;
        if bits & (1 << last) == 0 || (name == ".git" && !self.names_git) {
            return false;
        }
        match &self.components[last] {
            Component::Deep => true,
            Component::Name(tokens) => fits(tokens, name),
        }
    }
}

// Writes the braces out: `a{b,c}` is `ab` and `ac`. Inside brackets a brace is a character.
fn expand(text: &str) -> Result<Vec<String>, &'static str> {
    let mut done = Vec::new();
    let mut todo = vec![text.to_owned()];
    while let Some(next) = todo.pop() {
        match first_braces(&next)? {
            None => done.push(next),
            Some((open, close, commas)) => {
                let mut from = open + 1;
                for to in commas.into_iter().chain([close]) {
                    todo.push(format!(
                        "{}{}{}",
                        &next[..open],
                        &next[from..to],
                        &next[close + 1..]
                    ));
                    from = to + 1;
                }
            }
        }
        if done.len() + todo.len() > MOST_ALTERNATIVES {
            return Err("its braces stand for too many alternatives");
        }
    }
    Ok(done)
}

type Braces = (usize, usize, Vec<usize>);

fn first_braces(text: &str) -> Result<Option<Braces>, &'static str> {
    let (mut depth, mut open, mut commas) = (0_usize, 0, Vec::new());
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '[' => skip_class(&mut chars),
            '{' => {
                if depth == 0 {
                    open = at;
                }
                depth += 1;
            }
            ',' if depth == 1 => commas.push(at),
            '}' if depth == 0 => return Err("it has a `}` without `{`"),
            '}' => {
                depth -= 1;
                if depth == 0 {
                    return Ok(Some((open, at, commas)));
                }
            }
            _ => {}
        }
    }
    if depth > 0 {
        Err("it has a `{` without `}`")
    } else {
        Ok(None)
    }
}

// A `]` right after `[` or `[!` is a member; an unclosed class is told of by `tokens`.
fn skip_class(chars: &mut Peekable<std::str::CharIndices<'_>>) {
    chars.next_if(|(_, c)| matches!(c, '!' | '^'));
    chars.next_if(|(_, c)| *c == ']');
    for (_, c) in chars.by_ref() {
        if c == ']' {
            break;
        }
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, &'static str> {
    let mut tokens = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '?' => tokens.push(Token::One),
            '*' if tokens.last() == Some(&Token::Many) => {}
            '*' => tokens.push(Token::Many),
            '[' => tokens.push(class(&mut chars)?),
            other => tokens.push(Token::Char(other)),
        }
    }
    Ok(tokens)
}

fn class(chars: &mut Peekable<std::str::Chars<'_>>) -> Result<Token, &'static str> {
    let not = chars.next_if(|c| matches!(c, '!' | '^')).is_some();
    let mut ranges = Vec::new();
    loop {
        let low = chars.next().ok_or("it has a `[` without `]`")?;
        if low == ']' && !ranges.is_empty() {
            return Ok(Token::Class { not, ranges });
        }
        let mut ahead = chars.clone();
        let high = match (ahead.next(), ahead.next()) {
            (Some('-'), Some(high)) if high != ']' => {
                *chars = ahead;
                high
            }
            _ => low,
        };
        if high < low {
            return Err("it has a range whose end is before its start");
        }
        ranges.push((low, high));
    }
}

// Greedy with one way back: the last `*` may take one character more.
fn fits(tokens: &[Token], name: &str) -> bool {
    let (mut at, mut rest) = (0, name.chars());
    let mut back: Option<(usize, std::str::Chars<'_>)> = None;
    loop {
        if tokens.get(at) == Some(&Token::Many) {
            at += 1;
            back = Some((at, rest.clone()));
            continue;
        }
        let mut ahead = rest.clone();
        match (tokens.get(at), ahead.next()) {
            (None, None) => return true,
            (Some(token), Some(c)) if token.takes(c) => {
                at += 1;
                rest = ahead;
            }
            _ => {
                let Some((star, from)) = back.as_mut() else {
                    return false;
                };
                if from.next().is_none() {
                    return false;
                }
                at = *star;
                rest = from.clone();
            }
        }
    }
}

impl Token {
    fn takes(&self, c: char) -> bool {
        match self {
            Token::Char(own) => *own == c,
            Token::One => true,
            Token::Many => false,
            Token::Class { not, ranges } => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)) != *not
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(glob: &str, path: &str) -> bool {
        Glob::parse(glob).unwrap().matches_path(path)
    }

    #[test]
    fn globs_mean_what_gitignore_users_expect() {
        for (glob, path, want) in [
            ("*.rs", "a.rs", true),
            ("*.rs", "src/deep/a.rs", true),
            ("src/*.rs", "src/a.rs", true),
            ("src/*.rs", "src/b/a.rs", false),
            ("src/*.rs", "x/src/a.rs", false),
            ("/a.rs", "a.rs", true),
            ("./*.rs", "a.rs", true),
            ("./*.rs", "src/a.rs", false),
            ("/a.rs", "b/a.rs", false),
            ("src/**", "src/a/b/c", true),
            ("src/**", "src", false),
            ("src/**/c", "src/c", true),
            ("src/**/c", "src/a/b/c", true),
            ("**/c", "c", true),
            ("**/b/**/c", "a/b/c", true),
            ("**/b/**/c", "a/b/x/y/c", true),
            ("?.txt", "é.txt", true),
            ("?.txt", "ab.txt", false),
            ("[a-c].x", "b.x", true),
            ("[!a-c].x", "b.x", false),
            ("[]a].x", "].x", true),
            ("a[!x]b", "a/b", false),
            ("{a,b/c}.rs", "a.rs", true),
            ("{a,b/c}.rs", "b/c.rs", true),
            ("{a,b/c}.rs", "x/b/c.rs", false),
            ("{a,{b,c}d}", "cd", true),
            ("a\\b", "a\\b", true),
            ("*a*b*c", "xaxbxc", true),
            ("*a*b*c", "xaxbx", false),
            ("*", ".hidden", true),
            ("*", ".git/config", false),
            ("*", "sub/.git", false),
            (".git/**", ".git/hooks/x", true),
            ("**/.git/config", "sub/.git/config", true),
            ("{.git/config,**/*.rs}", ".git/a.rs", false),
        ] {
            assert_eq!(matches(glob, path), want, "{glob} {path}");
        }
    }

    #[test]
    fn bad_globs_are_told_and_never_explode() {
        for bad in ["[a", "a[", "{a", "a}", "[z-a]", "{a/b,{c}", "x/[a/b]"] {
            assert!(Glob::parse(bad).is_err(), "{bad}");
        }
        assert!(Glob::parse(&"{a,b}".repeat(40)).is_err());
        assert!(Glob::parse(&"a/".repeat(100)).is_err());
        assert!(!matches(&"*a".repeat(60), &"a".repeat(59)));
    }
}
