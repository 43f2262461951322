//! `make bench`: measurements and ratios, each within one run on one machine.
//!
//! A slow result does not fail the run, because machines differ. The table shows each measurement beside
//! what it is compared with.

mod addresses;
mod audit;
mod containers;
mod ground;
mod operator;
mod rehearsal;
mod runtimes;
mod wake;
mod windows;

use anyhow::Result;

/// One row of the report.
pub(crate) struct Row {
    what: &'static str,
    measured: String,
    beside: String,
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() == Some(addresses::ALONE) {
        return addresses::alone(&args.next().unwrap_or_default());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    // One part alone: make bench PART=operator
    let part = std::env::args().nth(1).unwrap_or_default();
    let wanted = |name: &str| part.is_empty() || part == name;
    let mut rows = if wanted("rehearsal") { rehearsal::rows()? } else { Vec::new() };
    if wanted("audit") {
        rows.extend(audit::rows()?);
    }
    if wanted("wake") {
        rows.extend(runtime.block_on(wake::rows())?);
    }
    if wanted("operator") {
        rows.extend(runtime.block_on(operator::rows())?);
    }
    if wanted("addresses") {
        rows.extend(runtime.block_on(addresses::rows())?);
    }
    if wanted("addresses") || wanted("crowd") {
        rows.extend(runtime.block_on(addresses::crowd_rows())?);
    }
    if wanted("idle") {
        rows.extend(runtime.block_on(addresses::idle_rows())?);
    }
    if wanted("windows") {
        rows.extend(runtime.block_on(windows::rows())?);
    }
    if wanted("runtimes") {
        rows.extend(runtime.block_on(runtimes::rows())?);
    }
    if wanted("containers") {
        rows.extend(runtime.block_on(containers::rows())?);
    }
    if wanted("ground") {
        rows.extend(runtime.block_on(ground::rows())?);
    }
    let wide = |text: fn(&Row) -> &str| rows.iter().map(|r| text(r).chars().count()).max().unwrap_or(0);
    let (what, measured) = (wide(|r| r.what), wide(|r| &r.measured));
    for row in &rows {
        println!("{:what$}  {:>measured$}  {}", row.what, row.measured, row.beside);
    }
    Ok(())
}
