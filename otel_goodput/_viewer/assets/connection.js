// The stream of what changes on the server. It rests while the tab is hidden, and comes back by itself when it breaks.

const AGAIN_MS = 3000;
const SILENT_MS = 25000; // the server says something every ten seconds

/** Say in the header how the connection is. */
export function liveState(words, kind) {
  const mount = document.getElementById("live-state");
  mount.textContent = words;
  mount.dataset.kind = kind;
}

/** Tell people why there is nothing to see; with an empty text, that all is well again. */
export function complaint(text) {
  const message = document.getElementById("message");
  message.textContent = text;
  message.hidden = !text;
}

/**
 * Listen to events at `address`, each of them JSON: `callbacks` has a function for each name of them. `missed` is called
 * when the stream comes back after a break. Returns an object with `close()`.
 */
export function listen(address, callbacks, missed = () => {}) {
  let source = null;
  let timer = null;
  let guard = null;
  let closed = false;
  let lost = false;

  const restartGuard = () => {
    clearTimeout(guard);
    guard = setTimeout(again, SILENT_MS);
  };
  const rest = () => {
    clearTimeout(timer);
    clearTimeout(guard);
    source?.close();
    source = null;
  };
  const again = () => {
    rest();
    if (closed || document.hidden) return;
    lost = true;
    liveState("connection lost, retrying", "lost");
    timer = setTimeout(connect, AGAIN_MS);
  };
  const failed = async () => {
    again();
    // An event source does not say why it failed.
    const status = await fetch(address, { method: "HEAD" }).then((answer) => answer.status, () => 0);
    if (status === 401 && !closed) complaint("The server was restarted. Open the address that it printed.");
  };
  const connect = () => {
    rest();
    if (closed || document.hidden) return;
    source = new EventSource(address);
    source.addEventListener("open", () => {
      liveState("live", "live");
      restartGuard();
      if (lost) missed();
      lost = false;
    });
    source.addEventListener("alive", restartGuard);
    for (const [name, callback] of Object.entries(callbacks)) {
      source.addEventListener(name, (event) => {
        restartGuard();
        callback(JSON.parse(event.data));
      });
    }
    source.addEventListener("end", again); // the server stops; perhaps it is started again
    source.addEventListener("error", failed); // also where the server refuses, after which browsers do not try again
  };
  const seen = () => {
    if (!document.hidden) {
      lost = true; // what came meanwhile is missing
      connect();
    } else {
      rest();
      liveState("paused while this tab is hidden", "paused");
    }
  };
  document.addEventListener("visibilitychange", seen);
  connect();
  return {
    close(words = "") {
      closed = true;
      rest();
      document.removeEventListener("visibilitychange", seen);
      liveState(words, "closed");
    },
  };
}
