//! Bars over time, as SVG by attributes alone: widths and heights are numbers of the drawing, and
//! colours are the style sheet's. What they say stands in a table below each.

/// Units of the drawing; it is stretched to its place.
pub const WIDTH: u32 = 960;
pub const HEIGHT: u32 = 120;

/// A rectangle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bar {
    pub x: u32,
    pub y: u32,
    pub width: u32,
    pub height: u32,
    pub class: &'static str,
}

/// The bars of a chart, ready to be drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chart {
    /// Names the drawing, once a page.
    pub id: &'static str,
    /// What it shows, in a sentence.
    pub title: String,
    pub width: u32,
    pub height: u32,
    pub bars: Vec<Bar>,
}

impl Chart {
    /// A column for each of `columns`: parts of the whole, from the bottom up, of which 1.0 is as
    /// high as the drawing. What is there at all can be seen.
    pub fn of(id: &'static str, title: String, columns: &[Vec<(f64, &'static str)>]) -> Chart {
        let mut bars = Vec::new();
        let step = WIDTH / u32::try_from(columns.len().max(1)).unwrap_or(WIDTH);
        let gap = u32::from(step > 4);
        for (at, column) in (0u32..).zip(columns) {
            let mut top = HEIGHT;
            for (part, class) in column.iter().filter(|(part, _)| *part > 0.0) {
                let height = (part.min(1.0) * f64::from(HEIGHT)).round().max(2.0) as u32;
                let height = height.min(top);
                top -= height;
                bars.push(Bar { x: at * step, y: top, width: step - gap, height, class });
            }
        }
        Chart { id, title, width: WIDTH, height: HEIGHT, bars }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_beside_each_other_and_parts_upon_each_other() {
        let columns = vec![vec![(0.5, "a"), (0.25, "b")], vec![], vec![(0.001, "a"), (7.0, "b")]];
        let bars = Chart::of("c", String::new(), &columns).bars;
        let shape = |bar: &Bar| (bar.x, bar.y, bar.height, bar.class);
        let shapes: Vec<_> = bars.iter().map(shape).collect();
        assert_eq!(
            shapes,
            [(0, 60, 60, "a"), (0, 30, 30, "b"), (640, 118, 2, "a"), (640, 0, 118, "b")]
        );
    }
}
