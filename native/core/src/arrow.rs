//! The buffers of Arrow columns, as bytes in the order of this machine.

#![forbid(unsafe_code)]

/// A column of values that may be null; `clear` begins it. The caller appends the bytes of a value to `texts`, then ends it.
#[derive(Debug, Default)]
pub struct Column {
    pub nulls: usize,
    pub validity: Vec<u8>, // a bit per row; unused while there is no null
    pub texts: Texts,      // the offsets are unused if all values have the same size
    pub names: Texts,      // of maps, whose values are in `values` and whose rows end at the offsets of `texts`
    pub values: Texts,
    rows: usize,
}

/// Values of variable size: value n is `data[offset n..offset n+1]`.
#[derive(Debug, Default)]
pub struct Texts {
    pub offsets: Vec<u8>, // i32 each, the first is 0
    pub data: Vec<u8>,
    count: i32,
}

impl Column {
    /// Remove all rows; the memory is retained for the next ones.
    pub fn clear(&mut self) {
        self.nulls = 0;
        self.rows = 0;
        self.validity.clear();
        self.texts.clear();
        self.names.clear();
        self.values.clear();
    }

    /// Append values of `N` bytes, none of them null. The rows of such a column are counted only if it may have nulls.
    #[inline]
    pub fn push_values<T, const N: usize>(&mut self, rows: &[T], value: impl Fn(&T) -> [u8; N]) {
        let start = self.texts.data.len();
        self.texts.data.resize(start + rows.len() * N, 0);
        for (place, row) in self.texts.data[start..].chunks_exact_mut(N).zip(rows) {
            place.copy_from_slice(&value(row));
        }
        self.rows += rows.len();
    }

    /// End a value of fixed size that was appended to `texts.data`.
    #[inline]
    pub fn end_value(&mut self) {
        if self.nulls > 0 {
            self.set_validity(1);
        }
        self.rows += 1;
    }

    #[inline]
    pub fn push_text(&mut self, text: &[u8]) {
        self.texts.data.extend_from_slice(text);
        self.end_text();
    }

    /// End a text that was appended to `texts.data`.
    #[inline]
    pub fn end_text(&mut self) {
        self.texts.end_value();
        self.end_value();
    }

    /// Append null to a column of texts.
    #[inline]
    pub fn push_null_text(&mut self) {
        self.texts.end_value();
        self.push_null();
    }

    /// Append nulls to a column of texts.
    pub fn push_null_texts(&mut self, count: usize) {
        self.texts.push_empty(count);
        self.push_nulls(count);
    }

    /// Append nulls to a column of values of `size` bytes.
    pub fn push_null_values(&mut self, count: usize, size: usize) {
        self.texts.data.resize(self.texts.data.len() + count * size, 0);
        self.push_nulls(count);
    }

    /// Append null to a column of values of the same size, of `zeros`.
    pub fn push_null_value(&mut self, zeros: &[u8]) {
        self.texts.data.extend_from_slice(zeros);
        self.push_null();
    }

    /// End a map whose pairs were appended to `names` and `values`.
    pub fn end_map(&mut self) {
        let end = self.names.count;
        self.texts.push_offset(end);
        self.rows += 1;
    }

    fn push_nulls(&mut self, count: usize) {
        let end = self.rows + count;
        while self.rows < end && self.rows % 8 != 0 {
            self.push_null(); // up to the end of a byte
        }
        let rest = end - self.rows;
        if rest == 0 {
            return;
        }
        if self.nulls == 0 {
            self.validity.resize(self.rows / 8, 0xff);
        }
        self.validity.resize(end.div_ceil(8), 0);
        self.nulls += rest;
        self.rows = end;
    }

    fn push_null(&mut self) {
        if self.nulls == 0 {
            self.validity.resize(self.rows.div_ceil(8), 0xff);
        }
        self.nulls += 1;
        self.set_validity(0);
        self.rows += 1;
    }

    #[inline]
    fn set_validity(&mut self, bit: u8) {
        let (index, shift) = (self.rows / 8, self.rows % 8);
        self.validity.resize(index + 1, 0);
        self.validity[index] = self.validity[index] & !(1 << shift) | bit << shift;
    }
}

impl Texts {
    fn clear(&mut self) {
        self.data.clear();
        self.offsets.clear();
        self.count = 0;
        self.push_offset(0);
    }

    #[inline]
    pub fn push(&mut self, text: &[u8]) {
        self.data.extend_from_slice(text);
        self.end_value();
    }

    /// Append an offset: the end of the data. Callers keep data below 2 GiB.
    #[inline]
    pub fn end_value(&mut self) {
        self.count += 1;
        self.push_offset(self.data.len() as i32);
    }

    fn push_empty(&mut self, count: usize) {
        let end = (self.data.len() as i32).to_ne_bytes();
        let start = self.offsets.len();
        self.offsets.resize(start + count * end.len(), 0);
        self.offsets[start..].chunks_exact_mut(end.len()).for_each(|place| place.copy_from_slice(&end));
        self.count += count as i32;
    }

    #[inline]
    fn push_offset(&mut self, offset: i32) {
        self.offsets.extend_from_slice(&offset.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(texts: &Texts) -> Vec<i32> {
        texts.offsets.chunks_exact(4).map(|chunk| i32::from_ne_bytes(chunk.try_into().unwrap())).collect()
    }

    #[test]
    fn nulls_clear_bits_and_repeat_an_offset() {
        let mut column = Column::default();
        for _ in 0..2 {
            column.clear();
            for row in 0..20 {
                if row == 9 || row == 17 {
                    column.push_null_text();
                } else {
                    column.push_text(b"ab");
                }
            }
            assert_eq!((column.nulls, column.texts.data.len()), (2, 36));
            assert_eq!(ends(&column.texts)[8..12], [16, 18, 18, 20]);
            let valid: Vec<usize> = (0..20).filter(|row| column.validity[row / 8] >> (row % 8) & 1 == 0).collect();
            assert_eq!(valid, [9, 17]);
        }
    }

    #[test]
    fn nulls_together_equal_single_ones() {
        for before in 0..20 {
            for (count, after) in [(0, 1), (1, 0), (7, 9), (8, 3), (300, 1)] {
                let (mut single, mut together) = (Column::default(), Column::default());
                for column in [&mut single, &mut together] {
                    column.clear();
                    (0..before).for_each(|_| column.push_text(b"ab"));
                }
                (0..count).for_each(|_| single.push_null_text());
                together.push_null_texts(count);
                for column in [&mut single, &mut together] {
                    (0..after).for_each(|_| column.push_text(b"c"));
                    column.push_null_text();
                }
                assert_eq!((single.nulls, &single.validity), (together.nulls, &together.validity), "{before} {count}");
                assert_eq!(ends(&single.texts), ends(&together.texts));
            }
        }
    }

    #[test]
    fn values_together_precede_nulls() {
        let mut column = Column::default();
        column.clear();
        column.push_values(&[1_i32, 2, 3], |value| value.to_ne_bytes());
        column.push_null_value(&[0; 4]);
        column.push_null_values(2, 4);
        assert_eq!((column.nulls, column.texts.data.len(), column.validity[0] & 0b11_1111), (3, 24, 0b00_0111));
    }

    #[test]
    fn a_map_ends_at_a_number_of_pairs() {
        let mut column = Column::default();
        column.clear();
        column.end_map();
        for name in [b"a", b"b"] {
            column.names.push(name);
            column.values.push(b"xyz");
        }
        column.end_map();
        assert_eq!((ends(&column.texts), ends(&column.values)), (vec![0, 0, 2], vec![0, 3, 6]));
    }
}
