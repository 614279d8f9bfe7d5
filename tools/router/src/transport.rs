//! Telling a failed exchange from a tool's own failure, for clients.

/// How an exchange with the server ended, as a client saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// An HTTP answer with this status.
    Http(u16),
    /// The connection was reset or closed before an answer.
    Reset,
}

/// Whether a failed exchange says nothing about the tool.
///
/// Refused authentication (401, 403) left no record; any other transport failure is
/// no proof that nothing ran: look the operation up by its key.
#[must_use]
pub fn is_transport_failure(exchange: Exchange) -> bool {
    match exchange {
        Exchange::Reset => true,
        Exchange::Http(status) => matches!(status, 401 | 403 | 404 | 408 | 429 | 502..=504),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classifies_by_status() {
        for status in [401, 403, 404, 408, 429, 502, 503, 504] {
            assert!(is_transport_failure(Exchange::Http(status)), "{status}");
        }
        for status in [200, 400, 405, 413, 500, 505] {
            assert!(!is_transport_failure(Exchange::Http(status)), "{status}");
        }
        assert!(is_transport_failure(Exchange::Reset));
    }
}
