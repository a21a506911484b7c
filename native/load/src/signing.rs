//! Signed requests: HMAC-SHA1 over the values of all fields in the order of their names, then the body. [AclClientRPCHook]

use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;

use crate::frame::{Encoded, Form};

pub const ACCESS_KEY: &str = "AccessKey";
pub const SIGNATURE: &str = "Signature";
const SIGNATURE_SIZE: usize = 28;
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The account that signs requests.
#[derive(Clone)]
pub struct Account {
    pub access_key: String,
    key: Box<Hmac<Sha1>>,
}

impl Account {
    /// Parse `ACCESS_KEY:SECRET_KEY`.
    pub fn parse(text: &str) -> Option<Account> {
        let (access_key, secret) = text.split_once(':')?;
        let key = Box::new(Hmac::new_from_slice(secret.as_bytes()).ok()?);
        Some(Account { access_key: access_key.to_owned(), key })
    }

    /// Return the signature of values and body, in Base64.
    pub fn signature(&self, values: &[u8], body: &[u8]) -> [u8; SIGNATURE_SIZE] {
        let mut digest = self.key.clone();
        digest.update(values);
        digest.update(body);
        base64(&digest.finalize().into_bytes())
    }
}

/// Encode a request without a body, signed if there is an account.
pub fn encode(form: Form, code: i16, opaque: i32, fields: &[(&str, &str)], account: Option<&Account>) -> Encoded {
    let Some(account) = account else { return form.encode(code, opaque, fields, b"") };
    let mut fields = fields.to_vec();
    fields.push((ACCESS_KEY, &account.access_key));
    let signature = account.signature(sorted_values(&fields).0.as_bytes(), b"");
    let signature = String::from_utf8_lossy(&signature).into_owned();
    fields.push((SIGNATURE, &signature));
    form.encode(code, opaque, &fields, b"")
}

/// Return the values in the order of their names, one after another, and where each begins, in the order of the fields.
pub fn sorted_values(fields: &[(&str, &str)]) -> (String, Vec<usize>) {
    let mut order: Vec<usize> = (0..fields.len()).collect();
    order.sort_by_key(|index| fields[*index].0);
    let (mut values, mut starts) = (String::new(), vec![0; fields.len()]);
    for index in order {
        starts[index] = values.len();
        values.push_str(fields[index].1);
    }
    (values, starts)
}

fn base64(digest: &[u8]) -> [u8; SIGNATURE_SIZE] {
    let mut text = [b'='; SIGNATURE_SIZE];
    for (bytes, characters) in digest.chunks(3).zip(text.chunks_exact_mut(4)) {
        let byte = |index: usize| u32::from(bytes.get(index).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for (index, character) in characters.iter_mut().take(bytes.len() + 1).enumerate() {
            *character = BASE64[(bits >> (18 - 6 * index) & 63) as usize];
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Frame;

    #[test]
    fn requests_have_the_signature_of_the_java_client() {
        let account = Account::parse("some-account:some-secret").unwrap();
        for form in [Form::Json, Form::Binary] {
            let bytes = encode(form, 30, 7, &[("topic", "T"), ("queueId", "0")], Some(&account)).bytes;
            let frame = Frame::parse(&bytes).unwrap();
            assert_eq!(frame.text("AccessKey").as_deref(), Some("some-account"));
            assert_eq!(frame.text("Signature").as_deref(), Some("5y10Lg7ILtM+txxDkMlb1yd5qBg="));
        }
        assert!(Account::parse("no-secret").is_none());
    }
}
