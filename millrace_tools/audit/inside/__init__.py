"""What an audit loads into processes of environments and graders, to break what is around them."""
