"""A collector's OTLP receiver over HTTP, in a process of its own: writes a line for each span.

Prints its port; ends when its input does. No collector comes from a package registry, so this
is made of what they are made of: the protocol's own messages, opentelemetry-proto.
"""

import gzip
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


def plain(attributes: Any) -> dict[str, Any]:
    kinds = {one.key: one.value.WhichOneof("value") for one in attributes}
    return {one.key: getattr(one.value, kinds[one.key] or "string_value") for one in attributes}


def lines(request: ExportTraceServiceRequest) -> list[str]:
    found = []
    for resource in request.resource_spans:
        service = plain(resource.resource.attributes).get("service.name")
        for scope in resource.scope_spans:
            for span in scope.spans:
                told = {
                    "service": service,
                    "name": span.name,
                    "trace": span.trace_id.hex(),
                    "span": span.span_id.hex(),
                    "parent": span.parent_span_id.hex(),
                    "links": [[link.trace_id.hex(), link.span_id.hex()] for link in span.links],
                    "attributes": {k: str(v) for k, v in plain(span.attributes).items()},
                    "events": [event.name for event in span.events],
                    "error": span.status.message if span.status.code == 2 else None,
                    "began": span.start_time_unix_nano,
                    "ended": span.end_time_unix_nano,
                }
                found.append(json.dumps(told) + "\n")
    return found


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        known = self.path == "/v1/traces"
        if known:
            with open(sys.argv[1], "a") as file:
                file.writelines(lines(ExportTraceServiceRequest.FromString(body)))
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200 if known else 404)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        return


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
