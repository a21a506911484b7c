//! A responder that accepts every send and stores nothing: shows what the load program itself can do.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::thread;

use crate::connection::Input;
use crate::frame::{Form, Frame};

const MESSAGE_ID: &str = "7F00000100002A9F0000000000000000";

/// Accept connections until the listener fails; each has a thread.
pub fn serve(listener: &TcpListener) -> std::io::Result<()> {
    for stream in listener.incoming() {
        let stream = stream?;
        thread::spawn(move || {
            // A load program that ends closes its connections: nothing to report.
            if let Err(fault) = answer(stream) {
                eprintln!("ariane-load: connection closed: {fault}");
            }
        });
    }
    Ok(())
}

fn answer(mut stream: TcpStream) -> Result<(), String> {
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let templates = [Form::Json, Form::Binary].map(Answer::new);
    let (mut input, mut output, mut hint) = (Input::default(), Vec::new(), 0);
    loop {
        match input.read_from(&mut stream) {
            Ok(0) | Err(_) => return Ok(()),
            Ok(_) => {}
        }
        while let Some(frame) = input.next_frame()? {
            let template = &templates[frame.form as usize];
            template.append(&mut output, &frame, &mut hint)?;
        }
        if stream.write_all(&output).is_err() {
            return Ok(());
        }
        output.clear();
    }
}

/// The answer to a send, around its opaque.
struct Answer {
    form: Form,
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Answer {
    /// Opaques of the load program have ten digits, so the length of the answer is the same for all.
    fn new(form: Form) -> Answer {
        let fields = [
            ("queueId", "0"),
            ("TRACE_ON", "true"),
            ("MSG_REGION", "DefaultRegion"),
            ("msgId", MESSAGE_ID),
            ("queueOffset", "1000000"),
        ];
        let encoded = form.encode(0, 1_000_000_000, &fields, b"");
        let mut bytes = encoded.bytes;
        let (size, flag) = if form == Form::Json { (10, &b"\"flag\":0"[..]) } else { (4, &b""[..]) };
        match form {
            Form::Json => {
                let at = crate::frame::find(&bytes, flag).expect("a header has a flag") + flag.len() - 1;
                bytes[at] = b'1';
            }
            Form::Binary => bytes[encoded.opaque_at + 7] = 1,
        }
        let after = bytes.split_off(encoded.opaque_at + size);
        bytes.truncate(encoded.opaque_at);
        Answer { form, before: bytes, after }
    }

    fn append(&self, out: &mut Vec<u8>, request: &Frame<'_>, hint: &mut usize) -> Result<(), String> {
        let opaque = request.head(hint)?.opaque;
        if self.form == Form::Json && opaque < 1_000_000_000 {
            return Err(format!("opaque {opaque}: only ten digits are answered; send with `ariane-load send`"));
        }
        out.extend_from_slice(&self.before);
        match self.form {
            Form::Json => out.extend_from_slice(opaque.to_string().as_bytes()),
            Form::Binary => out.extend_from_slice(&opaque.to_be_bytes()),
        }
        out.extend_from_slice(&self.after);
        Ok(())
    }
}
