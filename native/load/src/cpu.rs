//! CPU time of this program and of the broker's process.

use rustix::time::{clock_gettime, ClockId};

const TICK_S: f64 = 0.01; // Linux reports 100 ticks a second to programs, whatever its timer does

/// Return the CPU time in seconds that all threads of this program have used.
pub fn own_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Return the CPU time in seconds of another process (user and system, all threads) in steps of 10 ms.
pub fn process_seconds(pid: u32) -> Result<f64, String> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("cannot read {path}: {error}; check --pid"))?;
    parse_stat(&text).ok_or_else(|| format!("{path} has no CPU times: {text}"))
}

/// The name of the program, in parentheses, may contain spaces and parentheses.
fn parse_stat(text: &str) -> Option<f64> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user + system) as f64 * TICK_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_times_follow_the_name_of_the_program() {
        let text = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 1 0 100 0 0";
        assert_eq!(parse_stat(text), Some(3.0));
        assert_eq!(parse_stat("7 (a S 1"), None);
    }

    #[test]
    fn own_time_grows() {
        let begin = own_seconds();
        let mut sum = 0_u64;
        while own_seconds() <= begin {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(own_seconds() > begin);
    }
}
