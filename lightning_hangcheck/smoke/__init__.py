"""`hangcheck smoke`: a job as minimal runs in turn; the first that hangs says where to look."""
