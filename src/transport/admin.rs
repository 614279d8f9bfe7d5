//! The operator's listener: `/metrics`, `/livez`, `/readyz`. Never on the public one.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use codespace_store::Store;
use metrics_exporter_prometheus::PrometheusHandle;

use super::{host, listener::Listener, step::StepLayer};
use crate::config::{Listen, Public};

/// How often histograms are folded: keeps memory flat when nobody scrapes.
const UPKEEP: Duration = Duration::from_secs(5);

/// What the routes tell.
#[derive(Clone)]
pub struct Admin {
    /// Renders the metrics.
    pub metrics: PrometheusHandle,
    /// Asked for readiness.
    pub store: Store,
    /// False from the moment the server begins to stop.
    pub ready: Arc<AtomicBool>,
}

impl Admin {
    /// Binds and serves in a task of its own. Answers the bound address.
    ///
    /// # Errors
    /// The address is taken or not ours.
    pub async fn start(self, address: SocketAddr) -> Result<String> {
        let listener = Listener::bind(&Listen::Tcp(address))
            .await
            .with_context(|| {
                format!("admin.listen: {address} cannot be bound; choose another, or \"\" for none")
            })?;
        let name = listener.name();
        let upkeep = self.metrics.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(UPKEEP).await;
                upkeep.run_upkeep();
            }
        });
        let router = Router::new()
            .route("/metrics", get(metrics))
            .route("/livez", get(|| async { "ok\n" }))
            .route("/readyz", get(ready))
            .layer(StepLayer(host::Names(Arc::new(Public::default()))))
            .with_state(self);
        // Ends with the program: probes go on while the server drains.
        tokio::spawn(listener.serve(router, std::future::pending()));
        Ok(name)
    }
}

async fn metrics(State(admin): State<Admin>) -> Response {
    let kind = [(
        header::CONTENT_TYPE,
        "text/plain; version=0.0.4; charset=utf-8",
    )];
    (kind, admin.metrics.render()).into_response()
}

async fn ready(State(admin): State<Admin>) -> Response {
    if !admin.ready.load(Ordering::Relaxed) {
        return (StatusCode::SERVICE_UNAVAILABLE, "stopping\n").into_response();
    }
    match admin.store.probe().await {
        Ok(()) => "ok\n".into_response(),
        Err(_) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the store does not answer\n",
        )
            .into_response(),
    }
}
