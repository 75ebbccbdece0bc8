"""The state folder and the folders of trials in it: where they are, whose they are, what their files say."""
