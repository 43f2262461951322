//! What the pages say about their windows.

use super::week::Week;

/// A window in a page, and the words in its line that say when it is open.
pub struct Claim {
    pub page: &'static str,
    pub window: &'static str,
    pub words: &'static str,
    pub holds: Holds,
}

/// What the words mean.
pub enum Holds {
    /// In a zone, open in these minutes of each week.
    Weekly(&'static str, fn() -> Week),
    /// Open from one time to another, and never else.
    Once(&'static str, &'static str),
    /// Its first edges after the beginning of 2026-01-12, from the first at which it opens.
    Next(&'static [&'static str]),
    /// Not a window: the error has these words.
    Unreadable(&'static str),
}

use Holds::{Next, Once, Unreadable, Weekly};

const WINDOWS: &str = "docs/windows.md";
const NAMESPACES: &str = "docs/namespaces.md";

const fn claim(page: &'static str, window: &'static str, words: &'static str, holds: Holds) -> Claim {
    Claim { page, window, words, holds }
}

fn always() -> Week {
    Week::never().on(1..=7, "00:00-24:00")
}

fn before_five() -> Week {
    Week::never().on(1..=7, "00:00-05:00")
}

fn weekend() -> Week {
    Week::never().on(6..=7, "00:00-24:00")
}

fn office_hours() -> Week {
    Week::never().on(1..=5, "08:00-19:00")
}

fn outside_of_working_hours() -> Week {
    weekend().on(1..=5, "00:00-08:00").on(1..=5, "20:00-24:00")
}

fn at_midnight() -> Week {
    Week::never().on(1..=7, "00:00-00:01")
}

fn five_single_minutes() -> Week {
    let hours = ["00:00-00:01", "01:00-01:01", "02:00-02:01", "03:00-03:01", "04:00-04:01"];
    hours.iter().fold(Week::never(), |week, span| week.on(1..=7, span))
}

/// Every window in the pages, but for those of the migration tables.
pub const CLAIMS: &[Claim] = &[
    claim(
        NAMESPACES,
        "TZ=Europe/Paris * 0-6,20-23 * * MON-FRI; TZ=Europe/Paris * * * * SAT-SUN",
        "is awake from Monday to Friday, 07:00 to 20:00 in Paris, and asleep at night and from Friday 20:00 to Monday 07:00",
        Weekly("Europe/Paris", || weekend().on(1..=5, "00:00-07:00").on(1..=5, "20:00-24:00")),
    ),
    claim(
        NAMESPACES,
        "* 8-18 * * MON-FRI",
        "never put to sleep](windows.md#on-other-objects) from Monday to Friday, 08:00 to 18:59",
        Weekly("UTC", office_hours),
    ),
    claim(
        "docs/migrate-from-kube-green.md",
        "TZ=Europe/Rome * 0-7,20-23 * * MON-FRI; TZ=Europe/Rome * * * * SAT-SUN",
        "Write the annotation from the tables below",
        Weekly("Europe/Rome", outside_of_working_hours),
    ),
    claim(
        "docs/for-flux-users.md",
        "* 18-23,0-7 * * *",
        "every day from 18:00 to 07:59",
        Weekly("UTC", || Week::never().on(1..=7, "00:00-08:00").on(1..=7, "18:00-24:00")),
    ),
    claim(
        "docs/for-flux-users.md",
        "2026-12-20/2027-01-03",
        "a freeze over the holidays",
        Once("2026-12-20T00:00:00Z", "2027-01-04T00:00:00Z"),
    ),
    claim(
        "docs/containers.md",
        "TZ=Europe/Berlin * * * * SAT-SUN",
        "opens at 2026-11-20T23:00:00Z",
        Weekly("Europe/Berlin", weekend),
    ),
    claim(
        WINDOWS,
        "TZ=Europe/Paris * 8-17 * * MON-FRI",
        "reconcile.fluxcd.io/suspendedDuring",
        Weekly("Europe/Paris", || Week::never().on(1..=5, "08:00-18:00")),
    ),
    claim(WINDOWS, "* 0-4 * * *", "from 00:00 to 04:59, every day", Weekly("UTC", before_five)),
    claim(
        WINDOWS,
        "* 0-5,22-23 * * MON-FRI",
        "from Monday to Friday, 00:00 to 05:59 and 22:00 to 23:59",
        Weekly("UTC", || Week::never().on(1..=5, "00:00-06:00").on(1..=5, "22:00-24:00")),
    ),
    claim(
        WINDOWS,
        "* 0-7,20-23 * * MON-FRI; * * * * SAT-SUN",
        "every night from 20:00 to 07:59, and from Friday 20:00 to Monday 07:59 without a break",
        Weekly("UTC", outside_of_working_hours),
    ),
    claim(WINDOWS, "* * * * SAT-SUN", "from Saturday 00:00 to Sunday 23:59", Weekly("UTC", weekend)),
    claim(
        WINDOWS,
        "TZ=Europe/Paris * 8-18 * * MON-FRI",
        "from Monday to Friday, 08:00 to 18:59 in Paris",
        Weekly("Europe/Paris", office_hours),
    ),
    claim(
        WINDOWS,
        "TZ=UTC * 0-4 * * *; TZ=Asia/Tokyo * 0-4 * * *",
        "from 00:00 to 04:59 UTC, and from 15:00 to 19:59 UTC",
        Weekly("UTC", || before_five().on(1..=7, "15:00-20:00")),
    ),
    claim(
        WINDOWS,
        "2026-12-20/2027-01-03",
        "from the first day to the last, both whole",
        Once("2026-12-20T00:00:00Z", "2027-01-04T00:00:00Z"),
    ),
    claim(
        WINDOWS,
        "2026-12-20/2027-01-03",
        "during: 2026-12-20/2027-01-03",
        Once("2026-12-20T00:00:00Z", "2027-01-04T00:00:00Z"),
    ),
    claim(
        WINDOWS,
        "2026-12-20T18:00/2027-01-03T06:00",
        "from one moment to the other",
        Once("2026-12-20T18:00:00Z", "2027-01-03T06:00:00Z"),
    ),
    claim(WINDOWS, "@always", "| always |", Weekly("UTC", always)),
    claim(
        WINDOWS,
        "TZ=Europe/Paris * 22-23,0-5 * * MON-FRI",
        "$ caretaker window",
        Weekly("Europe/Paris", || Week::never().on(1..=5, "00:00-06:00").on(1..=5, "22:00-24:00")),
    ),
    claim(
        WINDOWS,
        "* 22-5 * * *",
        "$ caretaker window",
        Unreadable("the hour \"22-5\" runs backwards; write 22-23,0-5"),
    ),
    claim(WINDOWS, "@every 5m", "an error: neither is a window", Unreadable("is not a window")),
    claim(WINDOWS, "@reboot", "an error: neither is a window", Unreadable("is not a window")),
    claim(
        WINDOWS,
        "@hourly",
        "a single minute, which is almost surely a mistake",
        Weekly("UTC", || Week::never().each_hour(0..=0)),
    ),
    claim(WINDOWS, "@daily", "a single minute, which is almost surely a mistake", Weekly("UTC", at_midnight)),
    claim(
        WINDOWS,
        "@weekly",
        "a single minute, which is almost surely a mistake",
        Weekly("UTC", || Week::never().on(7..=7, "00:00-00:01")),
    ),
    claim(
        WINDOWS,
        "@monthly",
        "a single minute, which is almost surely a mistake",
        Next(&["2026-02-01T00:00:00Z", "2026-02-01T00:01:00Z", "2026-03-01T00:00:00Z"]),
    ),
    claim(
        WINDOWS,
        "@yearly",
        "a single minute, which is almost surely a mistake",
        Next(&["2027-01-01T00:00:00Z", "2027-01-01T00:01:00Z", "2028-01-01T00:00:00Z"]),
    ),
    claim(
        WINDOWS,
        "0 0-4 * * *",
        "a single minute, which is almost surely a mistake",
        Weekly("UTC", five_single_minutes),
    ),
    claim(WINDOWS, "@daily", "open for a minute", Weekly("UTC", at_midnight)),
    claim(WINDOWS, "0 0-4 * * *", "open for a minute", Weekly("UTC", five_single_minutes)),
    claim(WINDOWS, "* 0-4 * * *", "was meant", Weekly("UTC", before_five)),
    claim(WINDOWS, "* 0-4 * * *", "caretaker suspend ks --all --during", Weekly("UTC", before_five)),
    claim(
        WINDOWS,
        "* 8-18 * * MON-FRI",
        "never put to sleep from Monday to Friday, 08:00 to 18:59",
        Weekly("UTC", office_hours),
    ),
];
