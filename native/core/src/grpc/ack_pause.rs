//! Acknowledgements wait for further ones while a client sends many: each turn costs more than what is done in it.

use std::time::{Duration, Instant};

use super::turns::Turn;

const PAUSE: Duration = Duration::from_millis(1);
const ACKS_MIN: usize = 4; // of a turn, so that those of the next one wait

/// When the acknowledgements of a connection are handed over: after `PAUSE` if the client sends some before those of the last turn
/// are answered; otherwise once there are as many as in that turn, since threads that wait for their replies send no more.
#[derive(Debug, Default)]
pub struct AckPause {
    last: usize,        // acknowledgements of the last turn; 0: they do not wait
    is_streaming: bool, // whether some have arrived before those were answered
    until: Option<Instant>,
}

impl AckPause {
    /// Return until when a turn waits for further acknowledgements; None if it is handed over now. Other calls do not wait.
    ///
    /// `open` is the number of acknowledgements that are not answered, those of the turn included.
    pub fn until(&mut self, turn: &Turn, open: usize, now: Instant) -> Option<Instant> {
        let acks = turn.acks.len();
        if acks == 0 {
            return None;
        }
        let is_alone = turn.events.is_empty() && turn.sends.is_empty();
        self.is_streaming |= open > acks;
        if is_alone && self.last > 0 && (self.is_streaming || acks < self.last) {
            let until = *self.until.get_or_insert(now + PAUSE);
            if now < until {
                return Some(until);
            }
        }
        if is_alone || acks >= ACKS_MIN {
            self.last = if acks >= ACKS_MIN { acks } else { 0 };
        }
        (self.is_streaming, self.until) = (false, None);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::plain_acks::PlainAck;
    use super::super::turns::{Call, Event};
    use super::*;

    fn turn(acks: usize) -> Turn {
        Turn { acks: (0..acks).map(|_| PlainAck::default()).collect(), ..Turn::default() }
    }

    #[test]
    fn threads_that_wait_for_their_replies_are_served_when_all_have_acknowledged() {
        let (mut pause, start) = (AckPause::default(), Instant::now());
        assert_eq!(pause.until(&turn(3), 3, start), None);
        assert_eq!(pause.until(&turn(1), 1, start), None);
        for _ in 0..3 {
            assert_eq!(pause.until(&turn(4), 4, start), None);
            assert_eq!(pause.until(&turn(3), 3, start), Some(start + PAUSE));
        }
    }

    #[test]
    fn acknowledgements_of_a_client_that_does_not_wait_for_replies_are_collected() {
        let (mut pause, start) = (AckPause::default(), Instant::now());
        let end = start + PAUSE;
        assert_eq!(pause.until(&turn(4), 4, start), None);
        assert_eq!(pause.until(&turn(1), 5, start), Some(end));
        assert_eq!(pause.until(&turn(9), 9, start + PAUSE / 2), Some(end));
        assert_eq!(pause.until(&turn(9), 9, end), None);
    }

    #[test]
    fn the_pause_ends_and_there_is_none_while_there_are_few() {
        let (mut pause, start) = (AckPause::default(), Instant::now());
        let end = start + PAUSE;
        assert_eq!(pause.until(&turn(9), 9, start), None);
        assert_eq!(pause.until(&turn(8), 8, start), Some(end));
        assert_eq!(pause.until(&turn(8), 8, end), None);
        assert_eq!(pause.until(&turn(3), 3, end), Some(end + PAUSE));
        assert_eq!(pause.until(&turn(3), 3, end + PAUSE), None);
        assert_eq!(pause.until(&turn(3), 3, end + PAUSE), None);
    }

    #[test]
    fn other_calls_take_acknowledgements_along() {
        let (mut pause, now) = (AckPause::default(), Instant::now());
        assert_eq!(pause.until(&turn(4), 4, now), None);
        assert!(pause.until(&turn(1), 1, now).is_some());
        let mut other = turn(1);
        other.events.push(Event::Call(Box::<Call>::default()));
        assert_eq!(pause.until(&other, 1, now), None);
        assert!(pause.until(&turn(1), 1, now).is_some());
        assert_eq!(pause.until(&Turn::default(), 0, now), None);
    }
}
