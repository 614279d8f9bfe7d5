//! What git on the host would run later cannot be planted, and git inside goes on working.

#![allow(clippy::unwrap_used)]

mod support;

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use codespace_sandbox::{Ended, Launcher};
use support::{Place, Who, everyone, helper, start, succeeds};

const GIT: &str = "/usr/bin/git";

fn git(place: &Place, folder: &Path, args: &[&str]) {
    let mut command = Command::new(GIT);
    command.arg("-C").arg(folder).args(args);
    command
        .env_clear()
        .env("HOME", place.root.parent().unwrap())
        .env("PATH", "/usr/bin:/bin");
    for (name, value) in [
        ("GIT_AUTHOR_NAME", "a"),
        ("GIT_AUTHOR_EMAIL", "a@b"),
        ("GIT_COMMITTER_NAME", "a"),
        ("GIT_COMMITTER_EMAIL", "a@b"),
    ] {
        command.env(name, value);
    }
    if place.who != Who::Me {
        std::os::unix::process::CommandExt::uid(&mut command, support::NOBODY);
        std::os::unix::process::CommandExt::gid(&mut command, support::NOBODY);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{args:?} {output:?}");
}

fn repository(place: &Place) {
    git(place, &place.root, &["init", "-q", "-b", "main"]);
    place.write("file", "content\n");
    git(place, &place.root, &["add", "file"]);
    git(place, &place.root, &["commit", "-q", "-m", "first"]);
}

fn identify(place: &mut Place) {
    for (name, value) in [
        ("GIT_AUTHOR_NAME", "a"),
        ("GIT_AUTHOR_EMAIL", "a@b"),
        ("GIT_COMMITTER_NAME", "a"),
        ("GIT_COMMITTER_EMAIL", "a@b"),
    ] {
        place.plan.env.insert(name.to_owned(), value.to_owned());
    }
}

#[test]
fn git_works_inside() {
    for who in everyone() {
        for mut place in [Place::new(who), Place::partial(who)] {
            identify(&mut place);
            repository(&place);
            let output = place.sh(
                "set -e; echo more >> file; git add file; git commit -q -m second; git branch topic; git checkout -q topic
                 git worktree add -q tree main; (cd tree && git status --short && git log --oneline | wc -l)
                 git stash list; git gc -q; git tag v1; git init -q own; cd own; git config user.x y; echo '#!/bin/sh' > .git/hooks/pre-commit
                 cd ..; git clone -q . copy; git -C copy commit -q --allow-empty -m third; git worktree list; git fsck",
            );
            let said = succeeds(&output);
            assert!(!said.contains("put back"), "{who:?} {said}");
        }
    }
}

const ATTACKS: &str = r#"
import os, shutil, subprocess
def attempt(what, f):
    try: f()
    except OSError: return
    print('ESCAPED', what)
g = '.git'
evil = '[core]\n\tfsmonitor = ./evil\n'
attempt('config', lambda: open(g + '/config', 'a').write(evil))
attempt('config truncate', lambda: os.truncate(g + '/config', 0))
attempt('config chmod', lambda: os.chmod(g + '/config', 0o777))
attempt('config unlink', lambda: os.unlink(g + '/config'))
attempt('config over', lambda: os.rename('file', g + '/config'))
attempt('config link', lambda: os.link(g + '/config', 'linked'))
attempt('config proc', lambda: open('/proc/self/root' + os.getcwd() + '/.git/config', 'a'))
attempt('hook', lambda: open(g + '/hooks/pre-commit', 'w').write('#!/bin/sh\n'))
attempt('hooks mv', lambda: os.rename(g + '/hooks', 'hooks'))
attempt('git mv', lambda: os.rename(g, 'gone'))
attempt('root mv', lambda: os.rename(os.getcwd(), os.getcwd() + '2'))
attempt('git rm', lambda: os.rmdir(g))
"#;

#[test]
fn hooks_and_configuration_cannot_be_written() {
    for who in everyone() {
        let place = Place::new(who);
        repository(&place);
        let config = fs::read(place.root.join(".git/config")).unwrap();
        let said = succeeds(&place.python(ATTACKS));
        assert!(!said.contains("ESCAPED"), "{who:?} {said}");
        assert_eq!(fs::read(place.root.join(".git/config")).unwrap(), config);
        assert!(!place.root.join(".git/hooks/pre-commit").exists());
    }
}

fn through_launcher(place: &Place, script: &str) -> Ended {
    let launcher = Launcher::start(helper(), &place.plan).unwrap();
    let (text, status, ended) = start(&launcher, &["sh", "-c", script], &[]).unwrap().wait();
    assert_eq!(status, Some(0), "{text}");
    ended
}

#[test]
fn what_appears_is_put_back_and_named() {
    for who in everyone().into_iter().filter(|who| *who != Who::User) {
        for place in [Place::new(who), Place::partial(who)] {
            repository(&place);
            // A submodule's folder and a linked worktree, by hand.
            for folder in [
                ".git/modules/sub/hooks",
                ".git/modules/deep/er/hooks",
                ".git/worktrees/tree",
            ] {
                place.write(&format!("{folder}/keep"), "");
            }
            place.write(".git/modules/sub/config", "[core]\n");
            place.write(".git/modules/deep/er/config", "[core]\n");
            place.write(".git/worktrees/tree/commondir", "../..\n");
            place.write("linked/.git", "gitdir: elsewhere\n");
            let ended = through_launcher(
                &place,
                "mkdir -p .git/evil; echo evil > .git/commondir; echo evil > .git/config.worktree
                 for f in .git/modules/sub/config .git/modules/deep/er/config .git/worktrees/tree/commondir linked/.git; do echo evil > $f; done
                 echo evil > .git/modules/sub/hooks/post-checkout; echo evil > .git/worktrees/tree/config.worktree
                 mkdir -p .git/modules/new/hooks; touch .git/modules/new/HEAD; echo evil > .git/modules/new/config
                 mkdir -p .git/worktrees/other; echo ../.. > .git/worktrees/other/commondir; mkdir .git/worktrees/third; echo /evil > .git/worktrees/third/commondir; true",
            );
            let named = ended.protected.join(" ");
            for path in [
                ".git/commondir",
                ".git/config.worktree",
                ".git/worktrees/tree/config.worktree",
                ".git/modules/new/config",
                ".git/modules/new/hooks",
                ".git/worktrees/third/commondir",
            ] {
                assert!(
                    ended.protected.iter().any(|name| name == path),
                    "{path}: {named}"
                );
                assert!(!place.root.join(path).exists(), "{path}");
            }
            // Mounted read-only, or else put back.
            for (path, wanted) in [
                (".git/modules/sub/config", "[core]\n"),
                (".git/modules/deep/er/config", "[core]\n"),
                (".git/worktrees/tree/commondir", "../..\n"),
                ("linked/.git", "gitdir: elsewhere\n"),
            ] {
                assert_eq!(
                    fs::read_to_string(place.root.join(path)).unwrap(),
                    wanted,
                    "{path}"
                );
            }
            assert!(
                !place
                    .root
                    .join(".git/modules/sub/hooks/post-checkout")
                    .exists()
            );
            assert!(place.root.join(".git/modules/sub/hooks/keep").exists());
            assert!(place.root.join(".git/worktrees/other/commondir").exists());
            assert!(!named.contains("could not"), "{named}");
        }
    }
}

#[test]
fn a_link_planted_on_the_way_leads_nowhere() {
    for who in everyone().into_iter().filter(|who| *who != Who::User) {
        let place = Place::new(who);
        repository(&place);
        place.write(".git/worktrees/tree/commondir", "../..\n");
        let before = place.outside_state();
        let script = format!(
            "rm -rf .git/worktrees; ln -s {0} .git/worktrees; ln -s {0}/secret .git/commondir; ln -s {0} .git/modules",
            place.outside.display()
        );
        let ended = through_launcher(&place, &format!("({script}) 2>/dev/null; true"));
        assert!(
            ended
                .protected
                .iter()
                .any(|name| name.starts_with(".git/commondir")),
            "{ended:?}"
        );
        assert_eq!(place.outside_state(), before);
        assert!(fs::symlink_metadata(place.root.join(".git/commondir")).is_err());
    }
}

#[test]
fn strange_repositories_do_not_keep_commands_from_starting() {
    for who in everyone() {
        for make in [
            |place: &Place| symlink("elsewhere", place.root.join(".git")).unwrap(),
            |place: &Place| symlink(&place.outside, place.root.join(".git")).unwrap(),
            |place: &Place| {
                git(place, &place.root, &["init", "-q", "real"]);
                fs::rename(place.root.join("real/.git"), place.root.join("real.git")).unwrap();
                symlink("real.git", place.root.join(".git")).unwrap();
            },
            |place: &Place| drop(place.write(".git", "gitdir: /nowhere\n")),
            |place: &Place| drop(place.write(".git/config/deep", "")),
            |place: &Place| {
                symlink("/etc/passwd", place.root.join("x"))
                    .and_then(|()| symlink("x", place.root.join(".git")))
                    .unwrap()
            },
        ] {
            for place in [Place::new(who), Place::partial(who)] {
                make(&place);
                succeeds(&place.sh("true"));
            }
        }
    }
}

#[test]
fn protected_paths() {
    for who in everyone() {
        let mut place = Place::new(who);
        place.plan.protect = vec![
            "ci/pipeline.yml".into(),
            "locked".into(),
            "future/file".into(),
        ];
        place.write("ci/pipeline.yml", "steps\n");
        place.write("locked/deep/file", "x\n");
        let output = place.sh("echo evil > ci/pipeline.yml; echo evil > locked/deep/file; rm -rf locked; mkdir future; echo evil > future/file; echo ok > ci/other");
        let said = succeeds(&output);
        assert!(said.contains("put back future/file"), "{said}");
        assert_eq!(
            fs::read_to_string(place.root.join("ci/pipeline.yml")).unwrap(),
            "steps\n"
        );
        assert_eq!(
            fs::read_to_string(place.root.join("locked/deep/file")).unwrap(),
            "x\n"
        );
        assert!(!place.root.join("future/file").exists() && place.root.join("ci/other").exists());
    }
}

#[test]
fn nested_repositories_are_found() {
    for who in everyone() {
        let place = Place::new(who);
        place.write("a/b/keep", "");
        git(&place, &place.root.join("a/b"), &["init", "-q"]);
        let output = place.sh("echo evil >> a/b/.git/config; echo evil > a/b/.git/hooks/pre-commit; echo evil > a/b/.git/commondir; true");
        let said = succeeds(&output);
        assert!(said.contains("put back a/b/.git/commondir"), "{said}");
        assert!(
            !fs::read_to_string(place.root.join("a/b/.git/config"))
                .unwrap()
                .contains("evil")
        );
        assert!(!place.root.join("a/b/.git/hooks/pre-commit").exists());
    }
}

#[test]
fn what_cannot_be_removed_is_put_aside() {
    for place in [Place::new(Who::Me), Place::partial(Who::Me)] {
        git(&place, &place.root, &["init", "-q", "--template="]);
        let deep = "python3 -c \"import os
os.makedirs('.git/hooks')
open('.git/hooks/pre-commit', 'w').write('evil')
os.chdir('.git/hooks')
for i in range(200): os.mkdir('a'); os.chdir('a')\"";
        let ended = through_launcher(&place, &deep.replace("python3", "/usr/bin/python3"));
        assert_eq!(ended.protected, [".git/hooks"]);
        assert!(!place.root.join(".git/hooks").exists());
    }
}

#[test]
fn many_repositories_do_not_keep_commands_from_starting() {
    let place = Place::new(Who::Me);
    let launcher = Launcher::start(helper(), &place.plan).unwrap();
    let make = "for i in $(seq 600); do mkdir -p r/$i/.git/hooks; touch r/$i/.git/config; done";
    for script in [make, "true", "true"] {
        let (text, status, _) = start(&launcher, &["sh", "-c", script], &[]).unwrap().wait();
        assert_eq!(status, Some(0), "{text}");
    }
}
