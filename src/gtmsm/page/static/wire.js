// One websocket: a line of JSON and bytes behind it, both ways.

const encode = new TextEncoder(), decode = new TextDecoder();

export function pack(said, content = new Uint8Array(0)) {
  const head = encode.encode(JSON.stringify(said));
  const message = new Uint8Array(4 + head.length + content.length);
  new DataView(message.buffer).setUint32(0, head.length, true);
  message.set(head, 4);
  message.set(content, 4 + head.length);
  return message;
}

export function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const said = JSON.parse(decode.decode(new Uint8Array(buffer, 4, length)));
  let at = 4 + length;
  said.pictures = said.sizes.map((size) => {
    at += size;
    return new Uint8Array(buffer, at - size, size);
  });
  return said;
}

export class Line {
  // `hear` gets each message; `lost` the code with which the line was closed.
  constructor(hear, lost) {
    this.hear = hear;
    this.lost = lost;
    this.socket = null;
  }

  open() {
    const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/walk`);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => socket.send(pack({ do: "hello", session: sessionStorage.getItem("session") }));
    socket.onmessage = (event) => this.hear(unpack(event.data));
    socket.onclose = (event) => { if (this.socket === socket) this.lost(event.code); };
    this.socket = socket;
  }

  say(said, content) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(pack(said, content));
  }
}
