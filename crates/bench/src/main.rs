//! `make bench`: figures and ratios, each taken within one run on one machine.
//!
//! Nothing here fails for being slow: machines differ. The table says what was measured, beside
//! what it is compared with.

mod ground;
mod rehearsal;

use anyhow::Result;

/// One line of the report.
pub(crate) struct Row {
    what: &'static str,
    measured: String,
    beside: String,
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut rows = rehearsal::rows()?;
    rows.extend(runtime.block_on(ground::rows())?);
    let wide = |text: fn(&Row) -> &str| rows.iter().map(|r| text(r).chars().count()).max().unwrap_or(0);
    let (what, measured) = (wide(|r| r.what), wide(|r| &r.measured));
    for row in &rows {
        println!("{:what$}  {:>measured$}  {}", row.what, row.measured, row.beside);
    }
    Ok(())
}
