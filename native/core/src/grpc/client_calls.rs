//! What plain calls share: those of one client are served together.

use std::collections::HashMap;

use super::messages as api;
use super::turns::{Call, ConnectionId};

/// A call that is served together with others of its client.
pub trait ClientCall {
    fn call(&self) -> &Call;
}

/// Return the calls of each client together, in their order.
pub fn by_client<C: ClientCall>(calls: Vec<C>) -> Vec<Vec<C>> {
    let mut batches: Vec<Vec<C>> = Vec::new();
    let mut numbers: HashMap<(ConnectionId, String), usize> = HashMap::new();
    for each in calls {
        let (connection, client_id) = client_of(&each);
        let number = match batches.last().and_then(|batch| batch.last()).map(client_of) {
            Some(last) if last == (connection, client_id) => batches.len() - 1,
            _ => *numbers.entry((connection, client_id.to_owned())).or_insert(batches.len()),
        };
        match batches.get_mut(number) {
            Some(batch) => batch.push(each),
            None => batches.push(vec![each]),
        }
    }
    batches
}

fn client_of<C: ClientCall>(each: &C) -> (ConnectionId, &str) {
    let call = each.call();
    (call.connection, call.client_id().unwrap_or(""))
}

/// The status of success.
pub fn ok() -> api::Status {
    api::Status { code: api::Code::Ok as i32, message: "OK".to_owned() }
}
