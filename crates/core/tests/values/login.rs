//! How a login names the account (`store.login`).

use onedrop_core::login::LoginForm;

fn parse(text: &str) -> Result<LoginForm, String> {
    LoginForm::try_from(text.to_owned())
}

fn name(template: &str, account: &str, user: &str) -> Result<String, String> {
    match parse(template)? {
        LoginForm::Sasl => Err("sasl".to_owned()),
        LoginForm::Template(template) => template.name(account, user),
    }
}

#[test]
fn a_name_is_made_of_account_and_user() {
    for (template, account, user, expected) in [
        ("{account}*{user}", "lisa", "mda", "lisa*mda"),
        ("{account}%{user}", "lisa", "mda", "lisa%mda"),
        ("{user}/{account}", "lisa", "mda", "mda/lisa"),
        ("{account}@@{user}@mail.axial.net", "lisa", "mda", "lisa@@mda@mail.axial.net"),
        ("{account}*{user}", "{user}", "{account}", "{user}*{account}"),
        ("{account}%{user}", "li*sa", "mda", "li*sa%mda"),
    ] {
        assert_eq!(name(template, account, user).as_deref(), Ok(expected));
        assert_eq!(parse(template).map(|form| form.to_string()).as_deref(), Ok(template));
    }
    assert_eq!(parse("sasl"), Ok(LoginForm::Sasl));
}

#[test]
fn what_would_be_split_elsewhere_is_refused() {
    for (account, user) in [("li*sa", "mda"), ("lisa*", "mda"), ("*", "mda"), ("lisa", "m*da")] {
        let refused = name("{account}*{user}", account, user).expect_err("two separators");
        assert!(refused.contains("store.login") && refused.contains('*'), "{refused}");
    }
    assert!(name("{account}@@{user}", "lisa@", "mda").is_err(), "half a separator");
}

#[test]
fn a_template_that_cannot_work_says_why() {
    for (text, why) in [
        ("", "{account} is missing"),
        ("SASL", "{account} is missing"),
        ("plain", "{account} is missing"),
        ("{user}", "{account} is missing"),
        ("{account}", "{user} is missing"),
        ("{account}*{user}*{account}", "once each"),
        ("{account}*{user}{user}", "once each"),
        ("{account}{user}", "separator"),
        ("{account}at{user}", "separator"),
        ("{account}*{user}@{domain}", "braces"),
        ("{account} {user}", "blank"),
        ("{account}*{user}\r\n", "blank"),
    ] {
        let refused = parse(text).expect_err(text);
        assert!(refused.contains(why), "{text}: {refused}");
    }
}
