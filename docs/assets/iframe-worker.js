// Worker for pages that are opened as files, where browsers start none: it runs the script in a hidden frame of its own.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.frame = frame;
      const inside = frame.contentWindow;
      const outside = this;
      inside.document.open();
      inside.document.write("<html><body></body></html>");
      inside.document.close();
      const load = (address) =>
        new Promise((done) => {
          const script = inside.document.createElement("script");
          script.src = new URL(address, url);
          script.onload = script.onerror = done;
          inside.document.body.appendChild(script);
        });
      inside.importScripts = (...addresses) =>
        addresses.reduce((before, address) => before.then(() => load(address)), Promise.resolve());
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        outside.dispatchEvent(event);
        if (outside.onmessage) outside.onmessage(event);
      };
      this.ready = load(url);
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
