//! The fixed label of a tool's name.

use std::{fmt, sync::Arc};

use codespace_router::ToolRouter;

/// Turns a client's text into a label from a closed set. Cheap to clone.
#[derive(Clone)]
pub struct ToolLabels(Arc<dyn Fn(&str) -> &'static str + Send + Sync>);

impl ToolLabels {
    /// Labels by this function, which must answer from a closed set.
    pub fn new(label: impl Fn(&str) -> &'static str + Send + Sync + 'static) -> Self {
        Self(Arc::new(label))
    }

    /// The label of `tool`.
    #[must_use]
    pub fn of(&self, tool: &str) -> &'static str {
        (self.0)(tool)
    }
}

impl From<ToolRouter> for ToolLabels {
    /// A registered tool's own name, or `unknown`.
    fn from(router: ToolRouter) -> Self {
        Self::new(move |tool| router.label(tool))
    }
}

impl fmt::Debug for ToolLabels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ToolLabels")
    }
}
