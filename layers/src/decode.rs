//! Turns a call's JSON arguments into the tool's own type.
//!
//! First below the router: whatever follows works on types. It refuses arguments that do
//! not fit, naming the field and the rule but never repeating the value, and ignores
//! fields nobody knows as far as the type itself does. It decides nothing about the
//! caller. A drop drops the inner call. Emits `INVALID_ARGUMENTS`.

use std::{
    fmt,
    marker::PhantomData,
    sync::Arc,
    task::{Context, Poll},
};

use codespace_router::{Code, Decoded, RawCall, ToolError, ToolSpec};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tower_layer::Layer;
use tower_service::Service;

use crate::refuse::ResponseFuture;

/// Wraps a service in [`Decode`]. See the [module docs](self).
pub struct DecodeLayer<A> {
    spec: Arc<ToolSpec>,
    args: PhantomData<fn() -> A>,
}

/// Decodes the arguments of a call. See the [module docs](self).
pub struct Decode<A, S> {
    inner: S,
    spec: Arc<ToolSpec>,
    args: PhantomData<fn() -> A>,
}

// === impl DecodeLayer ===

impl<A> DecodeLayer<A> {
    /// Decodes calls of the tool `spec`.
    #[must_use]
    pub fn new(spec: Arc<ToolSpec>) -> Self {
        Self {
            spec,
            args: PhantomData,
        }
    }
}

impl<A, S> Layer<S> for DecodeLayer<A> {
    type Service = Decode<A, S>;

    fn layer(&self, inner: S) -> Decode<A, S> {
        Decode {
            inner,
            spec: self.spec.clone(),
            args: PhantomData,
        }
    }
}

// By hand: `A` need not be `Clone` or `Debug`.
impl<A> Clone for DecodeLayer<A> {
    fn clone(&self) -> Self {
        Self::new(self.spec.clone())
    }
}

impl<A> fmt::Debug for DecodeLayer<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecodeLayer")
            .field("tool", &self.spec.name)
            .finish_non_exhaustive()
    }
}

// === impl Decode ===

impl<A, S> Service<RawCall> for Decode<A, S>
where
    A: DeserializeOwned,
    S: Service<Decoded<A>>,
    S::Error: Into<ToolError>,
{
    type Response = S::Response;
    type Error = ToolError;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ToolError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, call: RawCall) -> Self::Future {
        match decode(call.arguments) {
            Ok(args) => ResponseFuture::running(self.inner.call(Decoded::new(
                self.spec.clone(),
                call.caller,
                args,
            ))),
            Err(error) => ResponseFuture::refused(error),
        }
    }
}

impl<A, S: Clone> Clone for Decode<A, S> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            spec: self.spec.clone(),
            args: PhantomData,
        }
    }
}

impl<A, S> fmt::Debug for Decode<A, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decode")
            .field("tool", &self.spec.name)
            .finish_non_exhaustive()
    }
}

fn decode<A: DeserializeOwned>(arguments: Map<String, Value>) -> Result<A, ToolError> {
    serde_path_to_error::deserialize(Value::Object(arguments)).map_err(|fault| {
        let field = fault.path().to_string();
        let said = fault.inner().to_string();
        let rule = rule(&said);
        if field == "." {
            return ToolError::new(Code::InvalidArguments, format!("invalid arguments: {rule}"));
        }
        ToolError::new(
            Code::InvalidArguments,
            format!("invalid argument {field}: {rule}"),
        )
        .with_detail("field", field)
    })
}

// Serde says `invalid type: string "the value", expected a boolean`: a value may be a
// whole file, so only what comes after it is kept.
fn rule(said: &str) -> &str {
    let rule = said.rfind(", expected ").map_or(said, |at| &said[at + 2..]);
    let end = (0..=rule.len().min(300))
        .rev()
        .find(|at| rule.is_char_boundary(*at));
    &rule[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_ready_err, assert_ready_ok, task};
    use tower_test::mock;

    use super::*;
    use crate::testing;

    #[tokio::test]
    async fn names_the_field_and_never_the_value() {
        let spec = crate::fakes::spec("toy", codespace_router::AccessClass::Reading);
        let layer = DecodeLayer::<testing::Args>::new(spec);
        let (mut service, mut handle) =
            mock::spawn_layer::<Decoded<testing::Args>, codespace_router::ToolReply, _>(layer);
        handle.allow(1);
        assert_ready_ok!(service.poll_ready());
        let mut call = testing::raw("toy", "me");
        call.arguments.insert("workspace".to_owned(), "demo".into());
        call.arguments.insert("print".to_owned(), "secret".into());
        let mut refused = task::spawn(service.call(call));
        let error = assert_ready_err!(refused.poll());
        assert_eq!(error.message(), "invalid argument print: expected u8");
        assert_eq!(error.code(), Code::InvalidArguments);
        let mut call = testing::raw("toy", "me");
        call.arguments.insert("workspace".to_owned(), "demo".into());
        let mut call = task::spawn(service.call(call));
        testing::next(&mut handle)
            .await
            .1
            .send_response(testing::reply());
        assert_ready_ok!(call.poll());
    }
}
