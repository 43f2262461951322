//! `caretaker window`

use caretaker_core::Timestamp;
use clap::Args;

use super::{TextOutput, parse_time};

/// `caretaker window`
#[derive(Debug, Args)]
pub struct WindowArgs {
    /// The expression: five fields of cron, a tag such as @daily, or two dates; several separated by `;`
    #[arg(value_name = "EXPR")]
    pub expression: String,
    /// Look at it at this time (RFC 3339, without a zone in UTC); default: now
    #[arg(long, value_name = "T", value_parser = parse_time)]
    pub at: Option<Timestamp>,
    /// How many of the next changes to show
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub edges: u16,
    /// The zone of windows that name none, such as Europe/Paris
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    pub zone: String,
    /// Output format
    #[arg(short, long, value_enum, default_value_t = TextOutput::Text)]
    pub output: TextOutput,
}
