"""One recorded replay: parent, runner process, open-loop clock, folder."""
