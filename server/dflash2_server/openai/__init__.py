"""OpenAI's protocols: chat completions, completions and responses.

For each one schemas_* is what a request may hold, *_inference turns it into an Inference, *_frames turns the events
of its answer into a response object or a stream, and the module of its name is the route.
"""
