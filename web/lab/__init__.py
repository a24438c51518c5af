"""The Prompt Lab: a page for studying a prompt, stand-alone or as a tab of the WebUI. It needs gradio."""
