//! A bar chart as SVG.

use std::fmt::Write as _;

/// The bars of one workload, one for each system, on a scale of their own.
pub struct Group {
    pub title: &'static str,
    /// Seconds; `None` where the system can't do it.
    pub bars: Vec<Option<f64>>,
    /// A bound, drawn as a line.
    pub mark: Option<f64>,
}

const COLOURS: [&str; 10] = [
    "#1b6ca8", "#6aa9d8", "#c8702a", "#5a9e4b", "#8a5fa8", "#8c8c8c", "#e2a878", "#a3cf98",
    "#c0a4d4", "#c4c4c4",
];
const BAR_HEIGHT: usize = 16;
const LEFT: usize = 110;
const WIDTH: usize = 560;
const RIGHT: usize = 90;
const GROUP_GAP: usize = 40;

/// Draws groups of horizontal bars.
pub fn bars(title: &str, systems: &[&str], groups: &[Group]) -> String {
    let group_height = systems.len() * BAR_HEIGHT + GROUP_GAP;
    let (width, height) = (LEFT + WIDTH + RIGHT, 40 + groups.len() * group_height);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"8\" y=\"20\" font-size=\"14\">{title}</text>\n"
    );
    for (number, group) in groups.iter().enumerate() {
        let top = 40 + number * group_height;
        let largest = group.bars.iter().flatten().copied().chain(group.mark).fold(0.0, f64::max);
        let scale = if largest > 0.0 { WIDTH as f64 / largest } else { 0.0 };
        let _ = writeln!(
            svg,
            "<text x=\"8\" y=\"{}\" font-weight=\"bold\">{}</text>",
            top + 11,
            group.title
        );
        for (place, (system, seconds)) in systems.iter().zip(&group.bars).enumerate() {
            let y = top + 17 + place * BAR_HEIGHT;
            let text = y + 11;
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{text}\" text-anchor=\"end\">{system}</text>",
                LEFT - 6
            );
            let Some(seconds) = seconds else {
                let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{text}\" fill=\"#888\">-</text>");
                continue;
            };
            let length = seconds * scale;
            let colour = COLOURS[place % COLOURS.len()];
            let end = LEFT as f64 + length + 5.0;
            let _ = writeln!(
                svg,
                "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{length:.1}\" height=\"{}\" \
                 fill=\"{colour}\"/>\n\
                 <text x=\"{end:.1}\" y=\"{text}\">{seconds:.2}</text>",
                BAR_HEIGHT - 3
            );
        }
        if let Some(mark) = group.mark {
            let x = LEFT as f64 + mark * scale;
            let (y, end) = (top + 14, top + 17 + systems.len() * BAR_HEIGHT);
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{y}\" y2=\"{end}\" stroke=\"#b00\" \
                 stroke-dasharray=\"3 2\"/>"
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}
