use super::*;

/// The outcome must not depend on where the bytes are cut.
fn read(bytes: &[u8]) -> Result<State, Violation> {
    let mut whole = Scanner::new();
    let at_once = whole.feed(bytes).map(|()| whole.state);
    for size in [1, 2, 3, 7] {
        let mut scanner = Scanner::new();
        let in_pieces = bytes
            .chunks(size)
            .try_for_each(|piece| scanner.feed(piece))
            .map(|()| scanner.state);
        assert_eq!(in_pieces, at_once, "pieces of {size}");
    }
    at_once
}

#[test]
fn honest_messages_pass() {
    for text in [
        "GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        "\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\nGET /2 HTTP/1.1\r\nhost: x\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\na\nbGET / HTTP/1.1\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\na\0b\r\n0\r\nt: 1\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        "POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
        "PRX / HTTP/1.1\r\n\r\n",
    ] {
        assert_eq!(read(text.as_bytes()), Ok(State::Head), "{text}");
    }
    assert_eq!(
        read(b"POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\nab"),
        Ok(State::Body(3))
    );
    assert_eq!(
        read(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\n\x00"),
        Ok(State::Opaque)
    );
}

#[test]
fn messages_with_two_readings_do_not() {
    for (text, violation) in [
        (
            "POST / HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
            Violation::TwoLengths,
        ),
        (
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n",
            Violation::TwoLengths,
        ),
        (
            "POST / HTTP/1.1\r\ncontent-length: 3\r\nContent-Length: 3\r\n\r\n",
            Violation::TwoLengths,
        ),
        (
            "POST / HTTP/1.1\r\ncontent-length: 3, 3\r\n\r\n",
            Violation::Length,
        ),
        (
            "POST / HTTP/1.1\r\ncontent-length: +3\r\n\r\n",
            Violation::Length,
        ),
        (
            "POST / HTTP/1.1\r\ncontent-length: 0x3\r\n\r\n",
            Violation::Length,
        ),
        (
            "POST / HTTP/1.1\r\ncontent-length:\r\n\r\n",
            Violation::Length,
        ),
        (
            "POST / HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
            Violation::TransferCoding,
        ),
        (
            "POST / HTTP/1.1\r\ntransfer-encoding: xchunked\r\n\r\n",
            Violation::TransferCoding,
        ),
        (
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
            Violation::TransferCoding,
        ),
        (
            "GET / HTTP/1.1\r\nx: 1\r\n folded: 2\r\n\r\n",
            Violation::FoldedLine,
        ),
        ("GET / HTTP/1.1\nhost: x\n\n", Violation::BareLineEnd),
        ("GET / HTTP/1.1\r\nx: a\rb\r\n\r\n", Violation::BareLineEnd),
        ("GET / HTTP/1.1\r\nx: a\0b\r\n\r\n", Violation::ZeroByte),
        (
            "GET / HTTP/1.1\r\ncontent-length : 3\r\n\r\n",
            Violation::FieldName,
        ),
        ("GET / HTTP/1.1\r\nnocolon\r\n\r\n", Violation::FieldName),
        ("CONNECT x:1 HTTP/1.1\r\n\r\n", Violation::Method),
        (
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3 \r\n",
            Violation::Chunk,
        ),
        (
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n",
            Violation::Chunk,
        ),
        (
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
            Violation::Chunk,
        ),
        (
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nab\r\n",
            Violation::Chunk,
        ),
        (
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\na",
            Violation::BareLineEnd,
        ),
    ] {
        assert_eq!(read(text.as_bytes()), Err(violation), "{text:?}");
    }
}

#[test]
fn bytes_of_another_protocol_wait_for_the_answer() {
    let asks = b"GET / HTTP/1.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n";
    let mut early = Scanner::new();
    early.feed(asks).unwrap();
    assert_eq!(early.feed(b"\x81\x00"), Err(Violation::EarlyUpgrade));
    let mut agreed = Scanner::new();
    agreed.feed(asks).unwrap();
    agreed.answered(b"HTTP/1.1 101 Switching Protocols\r\n");
    assert_eq!(agreed.feed(b"\x81\n\x00"), Ok(()));
    let mut refused = Scanner::new();
    refused.feed(asks).unwrap();
    refused.answered(b"HTTP/1.1 403 Forbidden\r\n");
    assert_eq!(refused.feed(b"\x81\n\x00"), Err(Violation::BareLineEnd));
}
