//! Streamable HTTP at `/mcp`, and at the same place below `public_url`'s path.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderValue, StatusCode, Version, header},
    middleware::{Next, from_fn, from_fn_with_state},
    response::{IntoResponse, Response},
};
use codespace_layers::{AuthenticateLayer, Authenticator};
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
};
use serde_json::json;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceBuilder;

use super::{envelope, host, listener::Listener, meter};
use crate::{
    config::{Auth, Config, Public},
    handler::Handler,
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

/// What the end of serving is coordinated by.
#[derive(Clone, Default)]
struct Ending {
    /// Cancelled by the signal to stop.
    closing: CancellationToken,
    /// Has a token for each request that has no response yet.
    requests: TaskTracker,
}

/// Counts requests without a response. While the server is closing, tells HTTP/1 clients not
/// to send more on this connection; HTTP/2 has a frame for that.
async fn track(State(ending): State<Ending>, request: Request, next: Next) -> Response {
    let _token = ending.requests.token();
    let http1 = request.version() < Version::HTTP_2;
    let mut response = next.run(request).await;
    if http1 && ending.closing.is_cancelled() {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    response
}

/// The HTTP edge, outermost first, around MCP.
fn edge(config: &Config, handler: Handler, cancel: CancellationToken, ending: Ending) -> Router {
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
                .layer(from_fn_with_state(ending, track))
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
                "server.listen: {:?} cannot be bound; choose another with --listen",
                config.listen
            )
        })?;
        let cancel = CancellationToken::new();
        let ending = Ending::default();
        let router = edge(config, handler, cancel.clone(), ending.clone());
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
