//! The store through its public face: a real file, a real thread.

mod faults;
mod life;
mod records;

use std::{path::Path, time::Duration};

use codespace_router::{
    Fingerprint, Ledger, Minted, NewOperation, OperationId, OperationStatus, Settlement,
    WorkspaceId,
};
use codespace_store::{Durability, Store, StoreOptions};
use serde_json::json;

fn options() -> StoreOptions {
    StoreOptions {
        durability: Durability::Process,
        keep: Duration::from_secs(30 * 24 * 60 * 60),
    }
}

fn open(path: &Path) -> Store {
    Store::open(path, options()).expect("the store opens")
}

fn operation(key: Option<&str>) -> NewOperation {
    NewOperation {
        caller: "ann".to_owned(),
        key: key.map(str::to_owned),
        fingerprint: Fingerprint([7; 32]),
        workspace: WorkspaceId::new("demo"),
        files: vec!["a.txt".to_owned(), "b/ü.txt".to_owned()],
    }
}

fn applied() -> Settlement {
    Settlement {
        status: OperationStatus::Applied,
        reason: None,
        result: json!({ "status": "applied" }),
    }
}

async fn mint(store: &Store, key: Option<&str>) -> OperationId {
    match store.mint(operation(key)).await.expect("mint") {
        Minted::New(id) => id,
        Minted::Taken(record) => panic!("taken by {}", record.operation_id),
    }
}
