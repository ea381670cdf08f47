//! Plots that are drawn from the cells of a table.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::tables::{CHARACTER, COLOURS, Line, Table, plot_values, rounded, ticks};

/// Pixels of a bar, and between rows.
const BAR: f64 = 9.0;
const GAP: f64 = 7.0;
const TOP: f64 = 40.0;
const WIDTH: f64 = 460.0;

/// How values are spread on an axis.
#[derive(Clone, Copy, Debug)]
pub enum Axis {
    /// From 0 on.
    Linear,
    /// From a power of ten below the least value on.
    Logarithmic,
}

impl Table {
    /// Draws a group of horizontal bars for each row, named by its first `names` cells, and in it a
    /// bar for each of these columns. A cell "3-5" or "3 to 5" is drawn from 0 to 3 and, hollow, up
    /// to 5; published columns are hollow; cells without a number have no bar.
    ///
    /// # Panics
    /// If the table has no such columns.
    pub fn bars(&self, unit: &str, names: usize, axis: Axis, columns: &[&str]) -> String {
        let columns = self.find(columns);
        let row = |cells: &Vec<String>| Row {
            name: cells[..names].join(", "),
            values: columns.iter().map(|at| interval(&cells[*at])).collect(),
        };
        let rows: Vec<Row> = self.rows().iter().map(row).collect();
        Sheet::new(&rows, axis, self.legend(&columns)).draw((&self.title, unit), &rows)
    }

    /// Draws lines over the values of a column: one for each of `columns`, and if there is a column
    /// `series`, one for each of its values, too. Published columns are points.
    ///
    /// # Panics
    /// If the table has no such columns.
    pub fn lines(&self, x: (&str, &str), series: Option<&str>, columns: &[&str]) -> String {
        let (over, columns) = (self.find(&[x.0])[0], self.find(columns));
        let series = series.map(|name| self.find(&[name])[0]);
        let mut lines: BTreeMap<(usize, usize), Line> = BTreeMap::new();
        let mut kinds: Vec<&str> = Vec::new();
        for row in self.rows() {
            let kind = series.map_or("", |at| row[at].as_str());
            let place = kinds.iter().position(|known| *known == kind).unwrap_or(kinds.len());
            if place == kinds.len() {
                kinds.push(kind);
            }
            for (part, Key { name, is_published, .. }) in
                self.legend(&columns).into_iter().enumerate()
            {
                let (Some(at), Some(value)) = (interval(&row[over]), interval(&row[columns[part]]))
                else {
                    continue;
                };
                let name = if kind.is_empty() { name } else { format!("{kind}: {name}") };
                let line = || Line { name, points: Vec::new(), is_published };
                lines.entry((place, part)).or_insert_with(line).points.push((at.0, value.0));
            }
        }
        let lines: Vec<Line> = lines.into_values().collect();
        plot_values(&self.title, (x.0, x.1), 0.0, &lines)
    }

    /// The places of columns, each behind the one before if there are several of its name.
    fn find(&self, names: &[&str]) -> Vec<usize> {
        let mut from = 0;
        names
            .iter()
            .map(|name| {
                let at = self.columns().iter().skip(from).position(|column| column == name);
                assert!(at.is_some(), "{} has no column {name} from {from} on", self.title);
                from += at.unwrap_or(0) + 1;
                from - 1
            })
            .collect()
    }

    /// Published columns have the colour of the one before.
    fn legend(&self, columns: &[usize]) -> Vec<Key> {
        let (mut colour, mut before) = (0_usize, "");
        let mut all = Vec::new();
        for at in columns {
            let column = self.columns()[*at].as_str();
            let is_published = column.starts_with("published");
            if !is_published {
                (colour, before) = (colour + 1, column);
            }
            let name = match columns.len() {
                3.. if is_published => format!("{before}, published"),
                _ => column.to_owned(),
            };
            all.push(Key { name, is_published, colour: colour.saturating_sub(1) });
        }
        all
    }
}

/// A column in the legend.
struct Key {
    name: String,
    is_published: bool,
    colour: usize,
}

/// A row of the table: the bounds of what its bars show.
struct Row {
    name: String,
    values: Vec<Option<(f64, f64)>>,
}

/// The number of a cell, or its lower and upper bound.
fn interval(cell: &str) -> Option<(f64, f64)> {
    let words: Vec<&str> = cell.split_whitespace().collect();
    if let [low, "to", high] = words[..] {
        return Some((low.parse().ok()?, high.parse().ok()?));
    }
    let word = words.first().filter(|_| words[1..].iter().all(|word| word.starts_with('(')))?;
    if let Some(high) = word.strip_prefix('<') {
        return Some((0.0, high.parse().ok()?));
    }
    if let Ok(value) = word.parse::<f64>() {
        return Some((value, value));
    }
    let (low, high) = word.split_once('-')?;
    Some((low.parse().ok()?, high.parse().ok()?))
}

/// Where values are on the horizontal axis.
struct Scale {
    left: f64,
    low: f64,
    high: f64,
    axis: Axis,
}

impl Scale {
    fn of(rows: &[Row], axis: Axis, left: f64) -> Self {
        let values = || rows.iter().flat_map(|row| row.values.iter().flatten());
        let high = values().map(|value| value.1).fold(f64::MIN_POSITIVE, f64::max);
        let positive = values().flat_map(|value| [value.0, value.1]).filter(|value| *value > 0.0);
        let least = positive.fold(high, f64::min);
        match axis {
            Axis::Linear => Self { left, low: 0.0, high: high * 1.02, axis },
            Axis::Logarithmic => {
                // A power of ten below the least, so that its bar can be seen.
                let low = ((least.log10() - 0.05).floor()).min(high.log10().ceil() - 1.0);
                Self { left, low, high: high.log10().ceil(), axis }
            }
        }
    }

    fn x(&self, value: f64) -> f64 {
        let value = match self.axis {
            Axis::Linear => value,
            Axis::Logarithmic => value.max(f64::MIN_POSITIVE).log10(),
        };
        self.left + ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0) * WIDTH
    }

    /// Values with a line.
    fn ticks(&self) -> Vec<f64> {
        let all = ticks(self.low, self.high);
        match self.axis {
            Axis::Linear => all,
            Axis::Logarithmic => {
                let whole = all.into_iter().filter(|power| (power - power.round()).abs() < 1e-9);
                whole.map(|power| 10_f64.powf(power)).collect()
            }
        }
    }
}

/// Where things are on the sheet of bars.
struct Sheet {
    scale: Scale,
    /// Right end of the names, and lower end of the bars.
    left: f64,
    bottom: f64,
    row_height: f64,
    legend: Vec<Key>,
}

impl Sheet {
    fn new(rows: &[Row], axis: Axis, legend: Vec<Key>) -> Self {
        let left = 16.0 + CHARACTER * longest(rows.iter().map(|row| row.name.as_str()));
        let row_height = BAR * legend.len() as f64 + GAP;
        let bottom = TOP + row_height * rows.len() as f64;
        Self { scale: Scale::of(rows, axis, left), left, bottom, row_height, legend }
    }

    fn draw(&self, (title, unit): (&str, &str), rows: &[Row]) -> String {
        let key = CHARACTER * longest(self.legend.iter().map(|key| key.name.as_str()));
        let title_width = 16.0 + 8.0 * longest([title].into_iter());
        let width = (self.left + WIDTH + 40.0 + key).max(title_width);
        let height = self.bottom.max(TOP + 16.0 * self.legend.len() as f64) + 44.0;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"{width:.0}\" height=\"{height:.0}\" fill=\"white\"/>\n\
             <text x=\"8\" y=\"20\" font-size=\"14\">{}</text>\n",
            escaped(title)
        );
        self.draw_axis(&mut svg, unit);
        for (place, row) in rows.iter().enumerate() {
            self.draw_row(&mut svg, TOP + self.row_height * place as f64 + GAP / 2.0, row);
        }
        for (place, key) in self.legend.iter().enumerate() {
            let (x, y) = (self.left + WIDTH + 14.0, TOP + 4.0 + place as f64 * 16.0);
            draw_bar(&mut svg, (10.0, 10.0), (x, y), key);
            write_text(&mut svg, (x + 16.0, y + 8.0), "start", &key.name);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn draw_axis(&self, svg: &mut String, unit: &str) {
        let bottom = self.bottom;
        for tick in self.scale.ticks() {
            let x = self.scale.x(tick);
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom:.1}\" \
                 stroke=\"#ddd\"/>"
            );
            write_text(svg, (x, bottom + 14.0), "middle", &rounded(tick).to_string());
        }
        write_text(svg, (self.left + WIDTH / 2.0, bottom + 32.0), "middle", unit);
    }

    fn draw_row(&self, svg: &mut String, top: f64, row: &Row) {
        let middle = top + BAR * self.legend.len() as f64 / 2.0 + 4.0;
        write_text(svg, (self.left - 6.0, middle), "end", &row.name);
        for (part, (value, key)) in row.values.iter().zip(&self.legend).enumerate() {
            if let Some((low, high)) = value {
                let ends = [*low, *high].map(|value| self.scale.x(value) - self.left);
                draw_bar(svg, (ends[0], ends[1]), (self.left, top + BAR * part as f64), key);
            }
        }
    }
}

fn longest<'t>(texts: impl Iterator<Item = &'t str>) -> f64 {
    texts.map(|text| text.chars().count()).max().unwrap_or(0) as f64
}

fn write_text(svg: &mut String, (x, y): (f64, f64), anchor: &str, text: &str) {
    let text = escaped(text);
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
}

/// A bar from its left end: filled up to the lower bound, and hollow up to the upper one.
fn draw_bar(
    svg: &mut String,
    (low, high): (f64, f64),
    (x, y): (f64, f64),
    Key { is_published, colour, .. }: &Key,
) {
    let colour = COLOURS[colour % COLOURS.len()];
    let height = BAR - 2.0;
    let filled = if *is_published { 0.0 } else { low };
    for (width, fill) in [(high, "white"), (filled, colour)] {
        if width > 0.0 {
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
                 fill=\"{fill}\" stroke=\"{colour}\"/>"
            );
        }
    }
    // Of a published interval, the lower bound is a line.
    if *is_published && low > 0.0 && low < high {
        let _ = writeln!(
            svg,
            "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{y:.1}\" y2=\"{1:.1}\" stroke=\"{colour}\"/>",
            x + low,
            y + height
        );
    }
}

/// Text of an SVG.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::{Axis, interval};
    use crate::Table;

    fn table() -> Table {
        let columns = ["way", "hosts", "hours", "published", "MB", "published"];
        let mut table = Table::new("Ways & means", &columns);
        for row in [["a", "10", "2", "4", "3-5", "-"], ["b", "20", "does not fit", "8", "<7", "10"]]
        {
            table.row(row.map(str::to_owned).to_vec());
        }
        table
    }

    /// Widths of bars that have this colour or none, without those of the legend.
    fn widths(svg: &str, fill: &str) -> Vec<f64> {
        let of = |line: &str, name: &str| -> Option<f64> {
            line.split(&format!("{name}=\"")).nth(1)?.split('"').next()?.parse().ok()
        };
        let bars = svg.lines().filter(|line| line.contains(fill) && line.contains("stroke"));
        bars.filter_map(|line| of(line, " width"))
            .filter(|width| (*width - 10.0).abs() > 0.01)
            .collect()
    }

    #[test]
    fn bars_are_as_long_as_their_cells_say() {
        let svg = table().bars("hours", 1, Axis::Linear, &["hours", "published"]);
        let (ours, hollow) = (widths(&svg, "#1b6ca8\" stroke"), widths(&svg, "white"));
        // One row has no hours; the filled bar lies on a hollow one of its own.
        assert_eq!((ours.len(), hollow.len()), (1, 3), "{svg}");
        assert!(
            (hollow[1] / ours[0] - 2.0).abs() < 0.01 && (hollow[2] / ours[0] - 4.0).abs() < 0.01
        );
        assert!(svg.contains("Ways &amp; means"));
        let log = table().bars("", 1, Axis::Logarithmic, &["MB", "published"]);
        assert_eq!(widths(&log, "white").len(), 3, "{log}");
    }

    #[test]
    fn the_second_column_of_a_name_is_the_one_behind_its_neighbour() {
        let svg = table().lines(("hosts", "MB"), Some("way"), &["MB", "published"]);
        assert!(
            svg.contains("a: MB") && svg.contains("b: published") && !svg.contains("a: published")
        );
        assert_eq!(table().find(&["MB", "published"]), [4, 5]);
        assert_eq!(table().find(&["published", "published"]), [3, 5]);
    }

    #[test]
    fn cells_are_numbers_intervals_or_text() {
        assert_eq!(interval("12.5"), Some((12.5, 12.5)));
        assert_eq!(interval("190-220"), Some((190.0, 220.0)));
        assert_eq!(interval("3 to 5.5"), Some((3.0, 5.5)));
        assert_eq!(
            (interval("<10"), interval("40 (002)")),
            (Some((0.0, 10.0)), Some((40.0, 40.0)))
        );
        for text in ["-", "does not fit", "", "19.6 days", "1.5, 2.5"] {
            assert_eq!(interval(text), None, "{text}");
        }
        assert_eq!(interval("-0.5"), Some((-0.5, -0.5)));
    }
}
