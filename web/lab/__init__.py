"""The Prompt Lab: a page on which a prompt is studied, stand-alone or as a tab of the WebUI. It needs gradio."""
