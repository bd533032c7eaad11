// An HTTP/2 server for tests: node http2_server.js CERTIFICATE_AND_KEY. Prints its port, then a line per request.
// The path says what it does: /ok, /reset (after reading), /drop, /refuse (REFUSED_STREAM), /hang, /unread.
const http2 = require("node:http2");
const fs = require("node:fs");

const pem = fs.readFileSync(process.argv[2]);
const server = http2.createSecureServer({ cert: pem, key: pem });
let sessions = 0;

server.on("session", () => { sessions += 1; });
server.on("sessionError", () => {});
server.on("stream", (stream, headers) => {
  const path = headers[":path"];
  stream.on("error", () => {});
  if (path === "/refuse") {
    stream.close(http2.constants.NGHTTP2_REFUSED_STREAM);
    return;
  }
  if (path === "/unread") {
    return;
  }
  let size = 0;
  stream.on("data", (piece) => { size += piece.length; });
  stream.on("end", () => {
    console.log(`${path} ${size}`);
    if (path === "/reset") {
      stream.close(http2.constants.NGHTTP2_INTERNAL_ERROR);
    } else if (path === "/drop") {
      stream.session.destroy();
    } else if (path !== "/hang") {
      stream.respond({ ":status": 200, "content-type": "text/plain" });
      stream.end(String(sessions));
    }
  });
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
