//! Streamable HTTP at `/mcp`, and at the same place below `public_url`'s path.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use axum::{
    Router,
    http::{StatusCode, header},
    middleware::{from_fn, from_fn_with_state},
    response::{IntoResponse, Response},
};
use codespace_layers::{AuthenticateLayer, Authenticator};
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tower::ServiceBuilder;

use super::{envelope, host, listener::Listener, meter};
use crate::{
    config::{Auth, Config, Public},
    handler::Handler,
};

/// An idle session of a client that never says good-bye.
const SESSION_IDLE: Duration = Duration::from_secs(120);

/// What the steps before rmcp need to know of it.
#[derive(Clone)]
pub(super) struct Mcp {
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

/// The HTTP edge, outermost first, around MCP.
fn edge(config: &Config, handler: Handler, cancel: CancellationToken) -> Router {
    let manager = Arc::new(session_manager());
    let mcp = Mcp {
        body_bytes: config.body_bytes,
        sessions: config.sessions.then(|| Arc::clone(&manager)),
    };
    // Host and Origin are checked below for every route, so rmcp's own lists stay off.
    let rmcp_config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(config.sessions)
        .with_json_response(true)
        .with_max_request_body_bytes(config.body_bytes)
        .with_cancellation_token(cancel)
        .disable_allowed_hosts();
    let service = StreamableHttpService::new(move || Ok(handler.clone()), manager, rmcp_config);
    let authenticator = match &config.auth {
        Auth::None => Authenticator::None,
        Auth::Bearer(tokens) => Authenticator::bearer(tokens.clone()),
    };
    let routes = Router::new()
        .route_service("/mcp", service.clone())
        .route_service("/mcp/", service);
    let routes = match config.public.prefix.as_str() {
        "" => routes,
        prefix => routes.clone().nest(prefix, routes),
    };
    let public: Arc<Public> = Arc::new(config.public.clone());
    routes
        .fallback(|| async {
            refusal(
                StatusCode::NOT_FOUND,
                "NOT_FOUND",
                "nothing is served here; MCP is at /mcp",
            )
        })
        .layer(
            ServiceBuilder::new()
                // Outermost: refusals are counted too.
                .layer(from_fn(meter::count))
                // Before anything is believed of a request: is it meant for us?
                .layer(from_fn_with_state(public, host::check))
                // Before a body is held for anyone.
                .layer(AuthenticateLayer::new(authenticator))
                // Innermost: rmcp then sees well-formed messages only.
                .layer(from_fn_with_state(mcp, envelope::check)),
        )
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
}

impl Server {
    /// Binds the listener; nothing is served yet.
    ///
    /// # Errors
    /// The address is taken or not ours.
    pub async fn bind(config: &Config, handler: Handler) -> Result<Self> {
        let listener = Listener::bind(&config.listen).await.with_context(|| {
            format!(
                "server.listen: {:?} cannot be bound; choose another with --listen",
                config.listen
            )
        })?;
        let cancel = CancellationToken::new();
        let router = edge(config, handler, cancel.clone());
        Ok(Self {
            listener,
            router,
            cancel,
        })
    }

    /// The address, as it was bound.
    pub fn name(&self) -> String {
        self.listener.name()
    }

    /// Serves until `stop`, then `drain`s: connections end after the request they are in,
    /// event streams when the drain is over.
    pub async fn serve(self, stop: impl Future<Output = ()>, drain: impl Future<Output = ()>) {
        let open = self.listener.serve(self.router, stop).await;
        let finish = open.shutdown();
        tokio::pin!(finish);
        let early = tokio::select! {
            () = &mut finish => true,
            () = drain => false,
        };
        self.cancel.cancel();
        if !early {
            // Answers are on their way; a client that does not read them is not waited for.
            let _ = tokio::time::timeout(Duration::from_secs(2), finish).await;
        }
    }
}
