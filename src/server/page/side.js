// The list of conversations at the side: always there on a wide screen, drawn over the page on a phone.
import {byId} from "./dom.js";

export function startSide() {
  const narrow = matchMedia("(max-width: 50rem)");
  const set = open => {
    document.body.classList.toggle("side-open", open);
    byId("shade").hidden = !open || !narrow.matches;
    byId("open-side").setAttribute("aria-expanded", String(open));
    byId("side").inert = !open;
  };
  const close = () => narrow.matches && set(false);
  byId("open-side").addEventListener("click", () => set(!document.body.classList.contains("side-open")));
  byId("shade").addEventListener("click", close);
  byId("side").addEventListener("keydown", event => event.key === "Escape" && close());
  narrow.addEventListener("change", () => set(!narrow.matches));
  set(!narrow.matches);
  return {open: () => set(true), close};
}
