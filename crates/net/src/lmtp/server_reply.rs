//! What the LMTP server says, but for how a delivery ended ([`reply`](super::reply()), whose codes
//! follow the outcome), its greeting, and what it offers. Each reply stands here once: its code,
//! its status (RFC 3463) and its text, in one line of printable ASCII without a line end.
//!
//! lmtp(8) returns a mail for a 5xx to LHLO, MAIL, RCPT or DATA (smtp_proto.c and smtp_trouble.c in
//! its sources). So what may hang on an address is 4xx, and 5xx are for a client that does not
//! speak LMTP, or in the wrong order. After a 421 the server closes the connection.

macro_rules! replies {
    ($($(#[$doc:meta])* $name:ident = $line:literal,)*) => {
        /// One of the replies.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum ServerReply {
            $($(#[$doc])* $name,)*
        }

        impl ServerReply {
            pub const ALL: &[ServerReply] = &[$(ServerReply::$name,)*];

            /// The line, without its line end.
            pub const fn line(self) -> &'static str {
                match self {
                    $(ServerReply::$name => $line,)*
                }
            }
        }
    };
}

replies! {
    // What was asked is done.
    Help = "214 2.0.0 RFC 2033",
    Bye = "221 2.0.0 Bye",
    AttributesTaken = "250 2.0.0 Attributes taken",
    ChunkTaken = "250 2.0.0 Chunk taken",
    NothingDone = "250 2.0.0 Nothing done",
    Reset = "250 2.0.0 Reset",
    SenderTaken = "250 2.1.0 Sender taken",
    RecipientTaken = "250 2.1.5 Recipient taken",
    CannotVerify = "252 2.5.0 Send a message to find out",
    SendData = "354 End data with <CR><LF>.<CR><LF>",

    // The connection ends.
    /// Also to a client that says RSET after its message, to see whether the connection is good.
    ShuttingDown = "421 4.3.2 Shutting down, try again",
    TooManyConnections = "421 4.3.2 Too many connections, try again",
    OutOfResources = "421 4.3.2 Out of resources, try again",
    Idle = "421 4.4.2 Idle for too long",
    TransactionTooLong = "421 4.4.2 Transaction takes too long",
    TooManyErrors = "421 4.7.0 Too many errors",
    TooManyCommands = "421 4.7.0 Too many commands without a message",

    // What may hang on an address.
    /// Perhaps because of an address: mail is not returned for that.
    LineTooLong = "451 4.5.2 Line too long",
    BadSender = "451 4.5.2 Sender address not understood",
    BadRecipient = "451 4.5.2 Recipient address not understood",
    BadParameter = "451 4.5.4 Parameter not offered, or not understood",
    /// A client may send the others in another transaction (RFC 5321 section 4.5.3.1.10). Postfix
    /// defers them if no other host has the socket.
    TooManyRecipients = "452 4.5.3 Too many recipients",

    // The client speaks another protocol.
    NotLmtp = "500 5.5.1 This is LMTP, say LHLO",
    UnknownCommand = "500 5.5.2 Unknown command",
    ControlCharacter = "500 5.5.2 Control character in a command",
    BadSyntax = "501 5.5.4 Syntax error",
    LhloSyntax = "501 5.5.4 Syntax: LHLO name",
    NoArgument = "501 5.5.4 No argument allowed",
    BdatSyntax = "501 5.5.4 Syntax: BDAT size [LAST]",
    BdatSize = "501 5.5.4 Bad size in BDAT",
    XforwardSyntax = "501 5.5.4 Syntax: XFORWARD attribute=value...",
    XforwardWord = "501 5.5.4 attribute=value expected",
    XforwardName = "501 5.5.4 Unknown attribute name",
    XforwardValue = "501 5.5.4 Attribute value missing or too long",
    XforwardPort = "501 5.5.4 Bad PORT",
    XforwardProto = "501 5.5.4 Bad PROTO",
    XforwardSource = "501 5.5.4 Bad SOURCE",
    NotOffered = "502 5.5.1 Command not offered",

    // Or in the wrong order.
    LhloFirst = "503 5.5.1 Say LHLO first",
    MailFirst = "503 5.5.1 Say MAIL first",
    TransactionOpen = "503 5.5.1 A transaction is open",
    NoRecipients = "503 5.5.1 No valid recipients",
    /// RCPT after the first chunk.
    MessageBegun = "503 5.5.1 The message has begun",
    DataAfterBdat = "503 5.5.1 DATA after BDAT",
}
