use prost::Message;

use super::*;

/// Through bytes, as between two processes.
fn travel<M: Message + Default>(message: &M) -> M {
    M::decode(message.encode_to_vec().as_slice()).expect("it is what was encoded")
}

#[test]
fn an_error_travels_whole() {
    let error = ToolError::new(Code::VersionConflict, "changed: é\n\"")
        .with_detail("path", "a.txt")
        .with_detail("line", 3)
        .with_source("a cause");
    let back = ToolError::from(travel(&wire::Fault::from(&error)));
    assert_eq!(back.body(), error.body());
    assert_eq!(
        std::error::Error::source(&back).map(ToString::to_string),
        Some("a cause".to_owned())
    );
    for code in Code::ALL {
        let error = ToolError::new(*code, "m");
        let back = ToolError::from(travel(&wire::Fault::from(&error)));
        assert_eq!(back.code(), *code);
    }
}

#[test]
fn a_file_travels_whole() {
    for encoding in [Encoding::Utf8, Encoding::Base64] {
        let file = FileContent {
            content: "zażółć\0\r\n".into(),
            encoding,
            version: "sha256:00".into(),
            size: u64::MAX,
            truncated: true,
        };
        let back = travel(&wire::FileContent::from(file.clone()));
        assert_eq!(FileContent::try_from(back).unwrap(), file);
    }
}

#[test]
fn a_patchs_end_travels_whole() {
    let changes = vec![
        Change {
            path: "a".into(),
            kind: ChangeKind::Move,
            before_version: Some("1".into()),
            after_version: None,
            moved_to: Some(String::new()),
            hunks: vec![Hunk {
                line: 7,
                matched: "exact".into(),
                candidates: 2,
            }],
        },
        Change {
            path: "b".into(),
            kind: ChangeKind::Add,
            before_version: None,
            after_version: Some("2".into()),
            moved_to: None,
            hunks: Vec::new(),
        },
    ];
    for status in OperationStatus::ALL {
        let applied = Applied {
            status,
            reason: Some("why".into()),
            changes: changes.clone(),
            undo: None,
        };
        let sent = travel(&wire::Applied::from(&applied));
        assert!(!sent.undo);
        let back = Applied::try_from(sent).unwrap();
        assert_eq!(back.status, status);
        assert_eq!(back.reason, applied.reason);
        assert_eq!(back.changes, changes);
    }
}

#[test]
fn what_is_known_of_a_process_travels_whole() {
    let mut all: Vec<_> = TERMINATIONS.into_iter().map(Some).collect();
    all.push(None);
    for termination in all {
        for limit_hit in LIMITS.into_iter().map(Some).chain([None]) {
            let status = ProcessStatus {
                state: if termination.is_none() {
                    ProcessState::Running
                } else {
                    ProcessState::Exited
                },
                termination,
                exit_code: Some(-1),
                signal: None,
                limit_hit,
                protected: vec![".git/config".to_owned()].into(),
                output_total: 9,
                output_retained_from: 8,
                eof: true,
            };
            let back = travel(&wire::ProcessStatus::from(status.clone()));
            assert_eq!(ProcessStatus::try_from(back).unwrap(), status);
        }
    }
    let chunk = Chunk {
        cursor: 5,
        chunk: "…".into(),
        eof: false,
        output_lost: true,
        retained_from: 2,
    };
    let back = travel(&wire::Chunk::from(chunk.clone()));
    assert_eq!(Chunk::try_from(back).unwrap(), chunk);
}

#[test]
fn nonsense_is_a_fault() {
    let internal = |error: ToolError| assert_eq!(error.code(), Code::Internal);
    internal(
        FileContent::try_from(wire::FileContent {
            content: Bytes::from_static(b"\xff"),
            ..Default::default()
        })
        .unwrap_err(),
    );
    internal(Applied::try_from(wire::Applied::default()).unwrap_err());
    internal(Change::try_from(wire::Change::default()).unwrap_err());
    let status = wire::ProcessStatus {
        termination: Some("bored".into()),
        ..Default::default()
    };
    internal(ProcessStatus::try_from(status).unwrap_err());
    internal(ToolError::from(wire::Fault::default()));
    internal(wire::DoneAnswer::default().open().0.unwrap_err());
    internal(id::<codespace_router::ProcessId>("op_1").unwrap_err());
}
