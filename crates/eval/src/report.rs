//! Tables as Markdown and CSV, and plots as SVG.

use std::fmt::Write as _;
use std::path::Path;

use crate::Result;

/// A table of text.
pub struct Table {
    pub title: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
    /// What has to be said below it.
    pub notes: Vec<String>,
}

impl Table {
    pub fn new(title: &str, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        Self { title: title.to_owned(), columns, rows: Vec::new(), notes: Vec::new() }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
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
    pub fn write_csv(&self, folder: &Path, name: &str) -> Result<()> {
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
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// Points are drawn, and no line between them.
    pub is_published: bool,
}

const COLOURS: [&str; 6] = ["#1b6ca8", "#c8702a", "#5a9e4b", "#8a5fa8", "#8c8c8c", "#b03060"];
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 40.0;
const TICKS: f64 = 8.0;

/// Where values are in a plot.
struct Scale {
    right: f64,
    low: f64,
    high: f64,
}

impl Scale {
    fn x(&self, value: f64) -> f64 {
        LEFT + value / self.right * WIDTH
    }

    fn y(&self, value: f64) -> f64 {
        TOP + HEIGHT - (value - self.low) / (self.high - self.low) * HEIGHT
    }
}

/// Draws shares in percent, from `low` to 100, over a common axis.
pub fn plot(title: &str, x_name: &str, low: f64, lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let right = points().map(|point| point.0).fold(f64::MIN_POSITIVE, f64::max);
    let scale = Scale { right, low, high: 100.0 };
    let (width, height) = (LEFT + WIDTH + 190.0, TOP + HEIGHT + 50.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"8\" y=\"20\" font-size=\"14\">{title}</text>\n"
    );
    draw_axes(&mut svg, &scale, x_name, "%");
    for (place, line) in lines.iter().enumerate() {
        draw_line(&mut svg, &scale, place, line);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Round values from `low` to `high`, about six.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let magnitude = 10_f64.powf(((high - low) / TICKS).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * magnitude);
    let step = steps.into_iter().find(|step| (high - low) / step <= TICKS).unwrap_or(magnitude);
    let all = std::iter::successors(Some((low / step).ceil() * step), |tick| Some(tick + step));
    all.take_while(|tick| *tick <= high + step * 1e-6).collect()
}

fn draw_axes(svg: &mut String, scale: &Scale, x_name: &str, y_name: &str) {
    for tick in ticks(scale.low, scale.high) {
        let (y, end) = (scale.y(tick), LEFT + WIDTH);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{end:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>",
            LEFT - 6.0,
            y + 4.0,
        );
    }
    for tick in ticks(0.0, scale.right) {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{tick}</text>",
            scale.x(tick),
            TOP + HEIGHT + 16.0,
        );
    }
    let middle = TOP + HEIGHT / 2.0;
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{x_name}</text>\n\
         <text x=\"14\" y=\"{middle:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 14 \
         {middle:.1})\">{y_name}</text>",
        LEFT + WIDTH / 2.0,
        TOP + HEIGHT + 36.0,
    );
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
