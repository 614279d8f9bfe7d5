//! What a file has besides its bytes, after an update and a move by the real server.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::Path,
};

use rustix::fs::{XattrFlags, getxattr, setxattr};
use serde_json::json;

use crate::support::Server;

const LIST: &str = "system.posix_acl_access";

/// An access list as the kernel keeps it (linux/posix_acl_xattr.h): the owner may do all, user
/// 1234 may read, the group may read, nobody else may do anything.
fn access_list() -> Vec<u8> {
    let none = u32::MAX;
    let entries: [(u16, u16, u32); 5] = [
        (0x01, 7, none),
        (0x02, 4, 1234),
        (0x04, 4, none),
        (0x10, 5, none),
        (0x20, 0, none),
    ];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(rights.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn attribute(path: &Path, name: &str) -> Vec<u8> {
    let mut value = [0; 256];
    let size = getxattr(path, name, &mut value[..])
        .unwrap_or_else(|error| panic!("{name} of {}: {error}", path.display()));
    value[..size].to_vec()
}

fn assert_kept(path: &Path) {
    let now = fs::metadata(path).expect("it is there");
    assert_eq!((now.uid(), now.gid()), (1234, 5678));
    // The group's bits are the mask of the access list; set-user-id went with the old bytes.
    assert_eq!(now.mode() & 0o7777, 0o750);
    assert_eq!(attribute(path, "user.note"), b"kept");
    assert_eq!(attribute(path, LIST), access_list());
}

#[test]
fn an_update_and_a_move_keep_owner_mode_access_list_and_attributes() {
    let place = tempfile::tempdir().expect("a folder");
    let root = place.path().join("root");
    fs::create_dir(&root).expect("a root");
    let path = root.join("a");
    fs::write(&path, "one\ntwo\n").expect("a file");
    chown(&path, Some(1234), Some(5678)).expect("these tests run as root");
    fs::set_permissions(&path, Permissions::from_mode(0o4750)).expect("a mode");
    let needs = "the folder for temporary files must be on a file system with access lists";
    setxattr(&path, "user.note", b"kept", XattrFlags::empty()).expect(needs);
    setxattr(&path, LIST, &access_list(), XattrFlags::empty()).expect(needs);
    fs::hard_link(&path, place.path().join("outside")).expect("a second name");
    let mut server = Server::start(&root, &place.path().join("state"));
    let mut patch = |sections: &str| {
        let patch = format!("*** Begin Patch\n{sections}*** End Patch\n");
        let answer = server.call(
            "apply_patch",
            json!({ "workspace_id": "w", "patch": patch }),
        );
        assert_eq!(answer["status"], "applied", "{answer}");
    };

    patch("*** Update File: a\n@@\n-one\n+1\n");
    assert_kept(&path);
    // A second name outside the root keeps the old bytes: nothing is written through it.
    let outside = fs::read_to_string(place.path().join("outside")).expect("it");
    assert_eq!(outside, "one\ntwo\n");

    patch("*** Update File: a\n*** Move to: deep/down/b\n@@\n-two\n+2\n");
    assert!(!path.exists());
    assert_kept(&root.join("deep/down/b"));

    // A move alone, and one onto a file that the same patch deletes: the moved file's own count.
    fs::write(root.join("target"), "other\n").expect("a file");
    patch("*** Delete File: target\n*** Update File: deep/down/b\n*** Move to: target\n");
    assert_kept(&root.join("target"));
    let text = fs::read_to_string(root.join("target")).expect("it");
    assert_eq!(text, "1\n2\n");

    // A new file takes nothing from its neighbours.
    patch("*** Add File: new\n+x\n");
    let new = fs::metadata(root.join("new")).expect("it");
    assert_eq!(
        (new.uid(), new.mode() & 0o111),
        (nix::unistd::getuid().as_raw(), 0)
    );
    assert!(getxattr(root.join("new"), "user.note", &mut [0_u8; 8][..]).is_err());
}
