//! Tables as Markdown and CSV, and plots as SVG.

use std::fmt::Write as _;
use std::path::Path;

/// A table of text.
pub struct Table {
    /// Its heading.
    pub title: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
    /// What has to be said below it.
    pub notes: Vec<String>,
}

impl Table {
    /// A table without rows.
    pub fn new(title: &str, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        Self { title: title.to_owned(), columns, rows: Vec::new(), notes: Vec::new() }
    }

    /// Adds a row, which has a cell for each column.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Adds a note.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Its columns.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Its rows.
    pub fn rows(&self) -> &[Vec<String>] {
        &self.rows
    }

    /// The table with its title and notes.
    pub fn markdown(&self) -> String {
        let mut text = format!("## {}\n\n", self.title);
        let _ = writeln!(text, "| {} |", self.columns.join(" | "));
        let _ = writeln!(text, "|---|{}", "---:|".repeat(self.columns.len().saturating_sub(1)));
        for row in &self.rows {
            let _ = writeln!(text, "| {} |", row.join(" | "));
        }
        for note in &self.notes {
            let _ = write!(text, "\n{note}\n");
        }
        text.push('\n');
        text
    }

    /// The rows as comma-separated values.
    pub fn csv(&self) -> String {
        let quote = |cell: &String| format!("\"{}\"", cell.replace('"', "\"\""));
        let line = |cells: &[String]| cells.iter().map(quote).collect::<Vec<_>>().join(",");
        let lines: Vec<String> = std::iter::once(line(&self.columns))
            .chain(self.rows.iter().map(|row| line(row)))
            .collect();
        lines.join("\n") + "\n"
    }

    /// Writes `NAME.csv`.
    pub fn write_csv(&self, folder: &Path, name: &str) -> crate::Result<()> {
        Ok(std::fs::write(folder.join(format!("{name}.csv")), self.csv())?)
    }
}

/// A share in percent.
pub fn percent(share: f64) -> String {
    format!("{:.2}", share * 100.0)
}

/// A number with as many digits as say something.
pub fn number(value: f64) -> String {
    if value == 0.0 {
        "0".to_owned()
    } else if value.abs() >= 100.0 {
        format!("{value:.0}")
    } else if value.abs() >= 1.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.4}")
    }
}

/// A line of a plot.
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Places on both axes.
    pub points: Vec<(f64, f64)>,
    /// Points are drawn, and no line between them.
    pub is_published: bool,
}

pub(crate) const COLOURS: [&str; 8] =
    ["#1b6ca8", "#c8702a", "#5a9e4b", "#8a5fa8", "#8c8c8c", "#b03060", "#009a9a", "#3a3a3a"];
/// Pixels of a character.
pub(crate) const CHARACTER: f64 = 6.3;
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 40.0;
const TICKS: f64 = 8.0;

/// Where values are in a plot.
struct Scale {
    left: f64,
    right: f64,
    low: f64,
    high: f64,
}

impl Scale {
    fn x(&self, value: f64) -> f64 {
        LEFT + (value - self.left) / (self.right - self.left) * WIDTH
    }

    fn y(&self, value: f64) -> f64 {
        TOP + HEIGHT - (value - self.low) / (self.high - self.low) * HEIGHT
    }
}

/// Draws shares in percent, from `low` or the least to 100, over a common axis.
pub fn plot(title: &str, x_name: &str, low: f64, lines: &[Line]) -> String {
    plot_from(title, x_name, (0.0, low), lines)
}

/// The same over an axis that begins at `left`.
pub fn plot_from(title: &str, x_name: &str, (left, low): (f64, f64), lines: &[Line]) -> String {
    let points = lines.iter().flat_map(|line| line.points.iter());
    let least = points.map(|point| (point.1 / 5.0).floor() * 5.0).fold(low, f64::min);
    draw(title, (x_name, "%"), (left, least, 100.0), lines)
}

/// Draws values from 0, or the least if it is negative, over an axis that begins at `left`.
pub fn plot_values(title: &str, names: (&str, &str), left: f64, lines: &[Line]) -> String {
    let points = lines.iter().flat_map(|line| line.points.iter());
    let low = points.clone().map(|point| point.1.floor()).fold(0.0, f64::min);
    let high = points.map(|point| point.1).fold(f64::MIN_POSITIVE, f64::max);
    draw(title, names, (left, low, high * 1.05), lines)
}

/// Draws lines over axes with these names, from the left and between low and high.
fn draw(
    title: &str,
    names: (&str, &str),
    (left, low, high): (f64, f64, f64),
    lines: &[Line],
) -> String {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let right = points().map(|point| point.0).fold(left + f64::MIN_POSITIVE, f64::max);
    let scale = Scale { left, right, low, high };
    let mut svg = sheet(title, lines.iter().map(|line| line.name.as_str()));
    draw_axes(&mut svg, &scale, names.1);
    for tick in ticks(left, right) {
        let (x, y) = (scale.x(tick), TOP + HEIGHT + 16.0);
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{}</text>",
            rounded(tick)
        );
    }
    name_axis(&mut svg, names.0);
    for (place, line) in lines.iter().enumerate() {
        draw_line(&mut svg, &scale, place, line);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Draws a group of bars for each name, one bar for each of `parts`.
pub fn bars(title: &str, y_name: &str, parts: &[&str], groups: &[(String, Vec<f64>)]) -> String {
    let high = groups.iter().flat_map(|group| &group.1).fold(f64::MIN_POSITIVE, |a, b| a.max(*b));
    let scale = Scale { left: 0.0, right: 1.0, low: 0.0, high: high * 1.05 };
    let mut svg = sheet(title, parts.iter().copied());
    draw_axes(&mut svg, &scale, y_name);
    let width = WIDTH / groups.len().max(1) as f64;
    for (group, (name, values)) in groups.iter().enumerate() {
        let left = LEFT + group as f64 * width;
        let bar = width * 0.8 / values.len().max(1) as f64;
        for (place, value) in values.iter().enumerate() {
            let (x, y) = (left + width * 0.1 + place as f64 * bar, scale.y(*value));
            let (height, colour) = (TOP + HEIGHT - y, COLOURS[place % COLOURS.len()]);
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{bar:.1}\" height=\"{height:.1}\" \
                 fill=\"{colour}\"/>"
            );
        }
        let (x, y) = (left + width / 2.0, TOP + HEIGHT + 16.0);
        let _ =
            writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{name}</text>");
    }
    for (place, part) in parts.iter().enumerate() {
        let (x, y) = (LEFT + WIDTH + 16.0, TOP + 14.0 + place as f64 * 16.0);
        let _ = writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"8\" height=\"8\" fill=\"{}\"/>\n\
             <text x=\"{:.1}\" y=\"{y:.1}\">{part}</text>",
            x - 4.0,
            y - 8.0,
            COLOURS[place % COLOURS.len()],
            x + 10.0,
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// An empty sheet with a title, wide enough for a legend of these names.
fn sheet<'t>(title: &str, names: impl Iterator<Item = &'t str>) -> String {
    let longest = names.map(|name| name.chars().count()).max().unwrap_or(0) as f64;
    let legend = (longest * CHARACTER + 40.0).max(230.0);
    let (width, height) = ((LEFT + WIDTH + legend).round(), TOP + HEIGHT + 50.0);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"8\" y=\"20\" font-size=\"14\">{title}</text>\n"
    )
}

/// Round values from `low` to `high`, about six.
pub(crate) fn ticks(low: f64, high: f64) -> Vec<f64> {
    let magnitude = 10_f64.powf(((high - low) / TICKS).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * magnitude);
    let step = steps.into_iter().find(|step| (high - low) / step <= TICKS).unwrap_or(magnitude);
    let all = std::iter::successors(Some((low / step).ceil() * step), |tick| Some(tick + step));
    all.take_while(|tick| *tick <= high + step * 1e-6).collect()
}

fn draw_axes(svg: &mut String, scale: &Scale, y_name: &str) {
    for tick in ticks(scale.low, scale.high) {
        let (y, end) = (scale.y(tick), LEFT + WIDTH);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{end:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            y + 4.0,
            rounded(tick),
        );
    }
    let middle = TOP + HEIGHT / 2.0;
    let _ = writeln!(
        svg,
        "<text x=\"14\" y=\"{middle:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 14 \
         {middle:.1})\">{y_name}</text>"
    );
}

/// A tick without the error of its sum.
pub(crate) fn rounded(tick: f64) -> f64 {
    (tick * 1e6).round() / 1e6
}

fn name_axis(svg: &mut String, name: &str) {
    let (x, y) = (LEFT + WIDTH / 2.0, TOP + HEIGHT + 36.0);
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{name}</text>");
}

fn draw_line(svg: &mut String, scale: &Scale, place: usize, line: &Line) {
    let colour = COLOURS[place % COLOURS.len()];
    let fill = if line.is_published { "white" } else { colour };
    let points = line.points.iter().map(|point| (scale.x(point.0), scale.y(point.1)));
    if !line.is_published {
        let path: Vec<String> = points.clone().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>",
            path.join(" ")
        );
    }
    let text = TOP + 14.0 + place as f64 * 16.0;
    let legend = (LEFT + WIDTH + 16.0, text - 4.0);
    for (x, y) in points.chain([legend]) {
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{fill}\" stroke=\"{colour}\"/>"
        );
    }
    let _ =
        writeln!(svg, "<text x=\"{:.1}\" y=\"{text:.1}\">{}</text>", legend.0 + 10.0, line.name);
}

#[cfg(test)]
mod tests {
    use super::{Line, plot};

    /// A value below `low` moves the axis, and no line leaves the frame.
    #[test]
    fn no_line_leaves_the_frame() {
        let line = |points| Line { name: String::new(), points, is_published: false };
        let svg = plot("", "", 90.0, &[line(vec![(1.0, 73.0), (2.0, 99.0)])]);
        let heights = svg.split("cy=\"").skip(1).map(|rest| rest.split('"').next());
        let heights: Vec<f64> = heights.filter_map(|text| text?.parse().ok()).collect();
        assert!(heights.len() == 3 && heights.iter().all(|y| (40.0..=340.0).contains(y)), "{svg}");
        assert!(svg.contains(">70<"), "the axis begins at 70: {svg}");
    }
}
