//! Streamable HTTP at `/mcp`, and at the same place below `public_url`'s path.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use axum::{
    Router,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use codespace_layers::Authenticator;
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{ending::Ending, listener::Listener};
use crate::{
    config::{Auth, Config},
    handler::Handler,
    stack::{self, Edge},
};

/// An idle session of a client that never says good-bye.
const SESSION_IDLE: Duration = Duration::from_secs(120);
/// How long requests are still taken after the signal to stop: one that is already on its way,
/// perhaps through a proxy that has not seen the readiness change, is answered and not reset.
const LAST_CALLS: Duration = Duration::from_millis(200);
/// How long answers may take to leave when all calls are done.
const ANSWERS: Duration = Duration::from_secs(2);

/// What the steps before rmcp need to know of it.
#[derive(Clone)]
pub struct Mcp {
    pub(super) body_bytes: usize,
    sessions: Option<Arc<LocalSessionManager>>,
}

impl Mcp {
    pub(super) fn has_sessions(&self) -> bool {
        self.sessions.is_some()
    }

    pub(super) async fn sessions_full(&self, most: usize) -> bool {
        match &self.sessions {
            Some(manager) => manager.sessions.read().await.len() >= most,
            None => false,
        }
    }
}

/// An answer that is not MCP's own: a JSON body with a code and a remedy.
pub(super) fn refusal(status: StatusCode, code: &str, message: &str) -> Response {
    let body = json!({ "code": code, "message": message }).to_string();
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// MCP's routes behind the HTTP edge.
fn routes(config: &Config, handler: Handler, cancel: CancellationToken, ending: Ending) -> Router {
    let manager = Arc::new(session_manager());
    let mcp = Mcp {
        body_bytes: config.body_bytes,
        sessions: config.sessions.then(|| Arc::clone(&manager)),
    };
    // Host and Origin are checked at the edge for every route, so rmcp's own lists stay off.
    let rmcp_config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(config.sessions)
        .with_json_response(true)
        .with_max_request_body_bytes(config.body_bytes)
        .with_cancellation_token(cancel)
        .disable_allowed_hosts();
    let service = StreamableHttpService::new(move || Ok(handler.clone()), manager, rmcp_config);
    let routes = Router::new()
        .route_service("/mcp", service.clone())
        .route_service("/mcp/", service);
    let routes = match config.public.prefix.as_str() {
        "" => routes,
        prefix => routes.clone().nest(prefix, routes),
    };
    let routes = routes.fallback(|| async {
        refusal(
            StatusCode::NOT_FOUND,
            "NOT_FOUND",
            "nothing is served here; MCP is at /mcp",
        )
    });
    let authenticator = match &config.auth {
        Auth::None => Authenticator::None,
        Auth::Bearer(tokens) => Authenticator::bearer(tokens.clone()),
    };
    let steps = Edge {
        ending,
        public: Arc::new(config.public.clone()),
        authenticator,
        mcp,
    };
    stack::edge(routes, steps)
}

fn session_manager() -> LocalSessionManager {
    let mut manager = LocalSessionManager::default();
    manager.session_config.keep_alive = Some(SESSION_IDLE);
    manager
}

/// A bound HTTP server.
pub struct Server {
    listener: Listener,
    router: Router,
    cancel: CancellationToken,
    ending: Ending,
}

impl Server {
    /// Binds the listener; nothing is served yet.
    ///
    /// # Errors
    /// The address is taken or not ours.
    pub async fn bind(config: &Config, handler: Handler) -> Result<Self> {
        let listener = Listener::bind(&config.listen).await.with_context(|| {
            format!(
                "server.listen: {} cannot be bound; choose another with --listen",
                config.listen
            )
        })?;
        let cancel = CancellationToken::new();
        let ending = Ending::default();
        let router = routes(config, handler, cancel.clone(), ending.clone());
        Ok(Self {
            listener,
            router,
            cancel,
            ending,
        })
    }

    /// The address, as it was bound.
    pub fn name(&self) -> String {
        self.listener.name()
    }

    /// Serves until `stop`, and a moment longer for calls on their way; then `drain`s:
    /// connections end after the request they are in, event streams when the drain is over.
    pub async fn serve(self, stop: impl Future<Output = ()>, drain: impl Future<Output = ()>) {
        let Ending { closing, requests } = self.ending;
        let last_call = async {
            stop.await;
            closing.cancel();
            // In steps: on a machine that stands still meanwhile, the runtime all the same gets
            // round to what lies in its sockets.
            for _ in 0..10 {
                tokio::time::sleep(LAST_CALLS / 10).await;
            }
        };
        let open = self.listener.serve(self.router, last_call).await;
        requests.close();
        let finish = open.shutdown();
        tokio::pin!(finish);
        let drained = async {
            drain.await;
            // A finished call is not yet an answer: rmcp drops those on their way when it is
            // cancelled. What it has answered as a stream gets a moment too.
            let _ = tokio::time::timeout(ANSWERS, requests.wait()).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let early = tokio::select! {
            () = &mut finish => true,
            () = drained => false,
        };
        self.cancel.cancel();
        if !early {
            // A client that does not read its answer is not waited for.
            let _ = tokio::time::timeout(ANSWERS, finish).await;
        }
    }
}
