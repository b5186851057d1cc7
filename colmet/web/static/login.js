// The login: the page opens afterwards at the view of this address.

document.forms[0].action += location.hash;
